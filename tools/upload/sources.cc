// Finding and opening, by tools/target.h.
#include "tools/upload/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/attribute_names.h"
#include "core/model_directory.h"
#include "tools/printable.h"
#include "tools/target.h"

namespace stfs::upload {
namespace {

namespace fs = std::filesystem;

/// The archives in a directory that has no index and is no mount; none where it is no such directory.
std::vector<fs::path> loose_archives(const fs::path& named) {
  std::vector<fs::path> archives;
  std::error_code error;
  if (!fs::is_directory(named, error) || find_model_index(named)) return archives;
  if (tools::read_mount_attribute(named, kArchiveAttribute)) return archives;
  for (auto entry = fs::directory_iterator(named, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().extension() == ".safetensors" && entry->is_regular_file(ignored)) {
      archives.push_back(entry->path());
    }
  }
  std::ranges::sort(archives);
  return archives;
}

/// A file that was written to in this tick of the kernel's clock could be written to once more without its
/// time changing (the clock of files is coarse before Linux 6.13): lets the tick pass.
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

Result<std::uint32_t> Sources::model_at(const fs::path& archive, const fs::path& named) {
  std::error_code error;
  const fs::path absolute = fs::absolute(archive, error);
  const std::string key = error ? archive.string() : absolute.lexically_normal().string();
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  auto target = tools::open_target(named, tools::read_mount_attribute, Access::ReadOnly, storage_);
  if (!target) return pass_on(std::move(target));
  let_tick_pass(*target->model);
  const auto model = static_cast<std::uint32_t>(models_.size());
  models_.push_back(std::move(target->model));
  known_.emplace(key, model);
  return model;
}

Result<std::vector<Source>> Sources::open(const fs::path& named) {
  std::vector<Source> sources;
  for (const fs::path& archive : loose_archives(named)) {
    auto model = model_at(archive, archive);
    if (!model) return pass_on(std::move(model));
    sources.push_back({archive, *model, std::nullopt});
  }
  if (!sources.empty()) return sources;
  const auto path = tools::locate_target(named);
  if (!path) return tl::unexpected(path.error());
  auto model = model_at(path->archive, named);
  if (!model) return pass_on(std::move(model));
  Source& source = sources.emplace_back(Source{named, *model, std::nullopt});
  if (!path->tensor) return sources;
  const TensorIndex& tensors = models_[*model]->tensors();
  source.tensor = tensors.find(*path->tensor);
  if (!source.tensor) {
    return fail(ErrorCode::NotFound, ENOENT,
                fmt::format("{}: its archive {}: has no tensor {} any more", named.string(),
                            path->archive.string(), tools::printable_name(*path->tensor)));
  }
  // A slice or a conversion that a mount shows has the attributes of its tensor.
  const Tensor tensor = tensors[*source.tensor];
  std::error_code error;
  if (const std::uint64_t size_bytes = fs::file_size(named, error);
      !error && size_bytes != tensor.data.size_bytes) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: is a view of a tensor: name the tensor's own file", named.string()));
  }
  return sources;
}

std::string version_of(const Model& model) {
  std::string version;
  for (const Shard& shard : model.shards()) {
    if (!shard.archive) continue;
    const FileIdentity identity = shard.archive->identity();
    if (!version.empty()) version += ' ';
    version += fmt::format("{:x}.{:x}.{:x}.{:x}", identity.device, identity.inode, identity.size_bytes,
                           identity.mtime_ns);
  }
  return version;
}

}  // namespace stfs::upload
