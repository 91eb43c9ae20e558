// Reads and combines modes and owners: each tensor shows its own shard's (filesystem.h).
#include "fs/base/log.h"
#include "fs/model/filesystem.h"

namespace stfs {

bool Filesystem::note_permissions(std::uint32_t shard) {
  constexpr mode_t kReadWrite = 0666;
  constexpr mode_t kWrite = 0222;
  auto found = stfs::permissions_of(model_->archive(shard).file());
  if (!found) {
    if (!shards_[shard].is_unknown) log::error("{}", found.error().message);
    return false;
  }
  found->mode &= options_.is_read_only ? kReadWrite & ~kWrite : kReadWrite;
  found->uid = options_.uid.value_or(found->uid);
  found->gid = options_.gid.value_or(found->gid);
  const std::scoped_lock lock(state_mutex_);
  if (shards_[shard].permissions == *found) return false;
  shards_[shard].permissions = *found;
  std::optional<Permissions> all;
  std::optional<Permissions> any;
  for (const ShardState& one : shards_) {
    if (!one.permissions) continue;
    all = all ? strictest(*all, *one.permissions) : *one.permissions;
    any = any ? loosest(*any, *one.permissions) : *one.permissions;
  }
  of_all_ = *all;
  of_any_ = *any;
  ++changes_;
  return true;
}

void Filesystem::forget_permissions(std::uint32_t shard) const {
  log::info("{}: mode or owner changed", model_->archive(shard).path().string());
  forget_(stale_shard(shard, Stale::What::Attributes));
  const std::uint32_t first_tensor = model_->first_tensor(shard);
  if (const std::uint32_t end_tensor = model_->first_tensor(shard + 1); end_tensor > first_tensor) {
    for (const Stale& view : views_->told(first_tensor, end_tensor - 1)) forget_(view);
  }
  forget_(Stale::one(kRootIno, Stale::What::Attributes));
  forget_({Views::kNpy, Views::kArchive, Stale::What::Attributes});
  forget_({TransactionDirectory::kViews, TransactionDirectory::kCommitted, Stale::What::Attributes});
  const auto [first, end] = inodes_.directories();
  if (first < end) forget_({first, end - 1, Stale::What::Attributes});
}

Permissions Filesystem::permissions_of_tensor(std::uint32_t tensor) const {
  const std::scoped_lock lock(state_mutex_);
  return shard_of(tensor).permissions.value_or(of_all_);
}

Permissions Filesystem::permissions_of_all() const {
  const std::scoped_lock lock(state_mutex_);
  return of_all_;
}

Permissions Filesystem::permissions_of_any() const {
  const std::scoped_lock lock(state_mutex_);
  return of_any_;
}

}  // namespace stfs
