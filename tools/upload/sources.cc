// Finds and opens the sources with tools/target/target.h.
#include "tools/upload/sources.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/base/wall_clock.h"
#include "tools/target/target.h"

namespace stfs::upload {
namespace {

namespace fs = std::filesystem;

/// Waits until the present tick of the kernel's file clock has passed. Before Linux 6.13 this clock is
/// coarse: a file that was written to in this tick could be written to again without a change of its time.
void let_tick_pass(const Model& model) {
  constexpr std::chrono::milliseconds kLongestTick{20};
  std::int64_t newest_ns = 0;
  for (const Shard& shard : model.shards()) {
    if (shard.archive) newest_ns = std::max(newest_ns, shard.archive->identity().mtime_ns);
  }
  const auto begin = std::chrono::steady_clock::now();
  while (newest_ns >= wall_clock_ns(stfs::Clock::Coarse) &&
         std::chrono::steady_clock::now() - begin < kLongestTick) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Result<std::uint32_t> Sources::model_at(const tools::TargetPath& path, const fs::path& named) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path.archive, error);
  const std::string key = error ? path.archive.string() : absolute.lexically_normal().string();
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  // Open the model only. Each source looks up the tensor that it names.
  auto target = tools::open_located({.archive = path.archive, .is_mounted = path.is_mounted}, named,
                                    {.storage = &storage_});
  if (!target) return pass_on(std::move(target));
  let_tick_pass(*target->model);
  const auto model = static_cast<std::uint32_t>(models_.size());
  models_.push_back(std::move(target->model));
  known_.emplace(key, model);
  return model;
}

Result<std::vector<Source>> Sources::open(const fs::path& named) {
  const auto paths = tools::locate_targets(named, tools::Use::Tensors);
  if (!paths) return tl::unexpected(paths.error());
  std::vector<Source> sources;
  for (const tools::TargetPath& path : *paths) {
    const auto model = model_at(path, paths->size() == 1 ? named : path.archive);
    if (!model) return tl::unexpected(model.error());
    const auto tensor = tools::named_tensor(path, named, *models_[*model]);
    if (!tensor) return tl::unexpected(tensor.error());
    sources.push_back({*model, *tensor});
  }
  return sources;
}

}  // namespace stfs::upload
