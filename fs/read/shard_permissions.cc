#include "fs/read/shard_permissions.h"

#include "core/base/mutex.h"
#include "fs/base/log.h"

namespace stfs {

ShardPermissions::ShardPermissions(const Snapshots& snapshots, const Overrides& overrides)
    : snapshots_(snapshots),
      overrides_(overrides),
      found_(snapshots->model->shards().size()),
      newest_(found_.size()),
      shown_(found_) {
  for (std::uint32_t shard = 0; shard < shown_.size(); ++shard) {
    if (!snapshots_->model->shards()[shard].archive) continue;
    if (const auto found = look(shard); !found) log::error("{}", found.error().message);
  }
}

Result<bool> ShardPermissions::look(std::uint32_t shard) {
  constexpr mode_t kReadWrite = 0666;
  constexpr mode_t kWrite = 0222;
  constexpr mode_t kRead = 0444;
  constexpr unsigned kReadToWrite = 1;
  const std::uint64_t number = ++looks_;
  auto found = permissions_of(*snapshots_->model->reader(shard).local_file());
  RETURN_IF_ERROR(found);
  found->mode &= overrides_.is_read_only ? kReadWrite & ~kWrite : kReadWrite;
  found->uid = overrides_.uid.value_or(found->uid);
  found->gid = overrides_.gid.value_or(found->gid);
  const MutexLock lock(mutex_);
  if (number < newest_[shard]) return false;
  newest_[shard] = number;
  if (found_[shard] == *found) return false;
  found_[shard] = shown_[shard] = *found;
  const std::optional<Permissions>& delta = found_.back();
  for (std::uint32_t base = 0; snapshots_->model->is_of_base(base) && delta && !overrides_.is_read_only;
       ++base) {
    if (!found_[base]) continue;
    // A write copies the whole tensor into the delta, whose readers may be other users.
    Permissions readable = *found_[base];
    readable.mode = (readable.mode & kRead) | (readable.mode & kRead) >> kReadToWrite;
    shown_[base] = strictest(*delta, readable);
  }
  std::optional<Permissions> all;
  std::optional<Permissions> any;
  for (const auto& one : shown_) {
    if (!one) continue;
    all = all ? strictest(*all, *one) : *one;
    any = any ? loosest(*any, *one) : *one;
  }
  of_all_ = *all;
  of_any_ = *any;
  return true;
}

Permissions ShardPermissions::of_shard(std::uint32_t shard) const {
  const MutexLock lock(mutex_);
  return shown_[shard].value_or(of_all_);
}

Permissions ShardPermissions::of_all() const {
  const MutexLock lock(mutex_);
  return of_all_;
}

Permissions ShardPermissions::of_any() const {
  const MutexLock lock(mutex_);
  return of_any_;
}

}  // namespace stfs
