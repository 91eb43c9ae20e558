#include "tools/target/common_mode.h"

#include <unistd.h>

#include "core/storage/permissions.h"

namespace stfs::tools {

namespace {

constexpr mode_t kReadWriteForAll = 0666;
constexpr mode_t kReadWriteForOwner = 0600;

/// A new file has another group than the shard if this process has.
mode_t mode_of(const Shard& shard) {
  if (!shard.archive) return kReadWriteForAll;  // nothing is read of it
  const auto status = strict_status_of(shard.archive->file());
  if (!status) return kReadWriteForOwner;
  const mode_t mode = status->mode & kReadWriteForAll;
  return status->gid == ::getegid() ? mode : (mode & 0606U) | (mode & 0006U) << 3U;
}

}  // namespace

mode_t common_mode(const Model& model) {
  mode_t mode = kReadWriteForAll;
  for (const Shard& shard : model.shards()) mode &= mode_of(shard);
  return mode | kReadWriteForOwner;
}

mode_t mode_of_tensor(const Model& model, std::uint32_t position) {
  return mode_of(model.shards()[model.place(position).shard]) | kReadWriteForOwner;
}

}  // namespace stfs::tools
