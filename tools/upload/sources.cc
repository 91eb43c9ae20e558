// Finds and opens the sources with tools/target/target.h.
#include "tools/upload/sources.h"

#include "core/model/delta_base.h"
#include "tools/target/target.h"

namespace stfs::upload {
namespace {

namespace fs = std::filesystem;

}  // namespace

Result<std::uint32_t> Sources::model_at(const tools::TargetPath& path, const fs::path& named) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path.archive, error);
  std::string key = error ? path.archive.string() : absolute.lexically_normal().string();
  if (!path.deltas.empty()) key += ':' + join_deltas(path.deltas);
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  // Open the model only. Each source looks up the tensor that it names.
  auto target =
      tools::open_located({.archive = path.archive, .deltas = path.deltas, .is_mounted = path.is_mounted},
                          named, {.storage = &storage_});
  RETURN_IF_ERROR(target);
  wait_for_later_times(*target->model);
  const auto model = static_cast<std::uint32_t>(models_.size());
  models_.push_back(std::move(target->model));
  known_.emplace(key, model);
  return model;
}

Result<std::vector<Source>> Sources::open(const fs::path& named) {
  const auto paths = tools::locate_targets(named, tools::Use::Tensors);
  RETURN_IF_ERROR(paths);
  std::vector<Source> sources;
  for (const tools::TargetPath& path : *paths) {
    const auto model = model_at(path, paths->size() == 1 ? named : path.archive);
    RETURN_IF_ERROR(model);
    const auto tensor = tools::named_tensor(path, named, *models_[*model]);
    RETURN_IF_ERROR(tensor);
    sources.push_back({*model, *tensor});
  }
  return sources;
}

}  // namespace stfs::upload
