#include "core/model/common_mode.h"

namespace stfs {

namespace {

constexpr mode_t kReadAndWrite = 0666;
constexpr mode_t kOwnersReadAndWrite = 0600;

NewFileMode mode_of_shard(const Shard& shard) {
  if (!shard.archive) return {};  // no byte comes from it
  const auto status = strict_status_of(shard.archive->file());
  if (!status) return {.mode = kOwnersReadAndWrite, .owner = NewFileMode::kNoUser};
  return {.mode = (status->mode & kReadAndWrite) | kOwnersReadAndWrite,
          .group = status->gid,
          .owner = status->uid};
}

}  // namespace

NewFileMode common_mode(const Model& model) {
  NewFileMode common;
  for (const Shard& shard : model.shards()) common = strictest(common, mode_of_shard(shard));
  return common;
}

NewFileMode mode_of_tensor(const Model& model, std::uint32_t position) {
  return mode_of_shard(model.shards()[model.place(position).shard]);
}

}  // namespace stfs
