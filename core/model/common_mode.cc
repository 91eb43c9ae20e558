#include "core/model/common_mode.h"

namespace stfs {

namespace {

NewFileMode mode_of_shard(const Shard& shard) {
  if (!shard.archive) return {};  // no byte comes from it
  return mode_of_copy(shard.archive->file());
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
