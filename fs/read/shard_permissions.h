// The modes and owners that a mount shows. A tensor has the permissions of its shard. A view of several
// shards allows an access if all shards allow it. A directory allows an access if at least one shard allows
// it.
//
// Writes to a tensor of the base of a delta go to the delta. A user may read the tensor if the user may read
// both archives. A user may write the tensor if the user may read it and may write the delta.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/mutex.h"
#include "core/model/model.h"
#include "core/storage/permissions.h"
#include "fs/tree/snapshot.h"

namespace stfs {

/// Any thread may call. No other lock is taken while its mutex is held.
class ShardPermissions {
 public:
  /// The values that the mount shows instead of a shard's own.
  struct Overrides {
    bool is_read_only = false;
    std::optional<uid_t> uid;
    std::optional<gid_t> gid;
  };
  /// @param snapshots  must outlive this object.
  ShardPermissions(const Snapshots& snapshots, const Overrides& overrides);

  [[nodiscard]] Permissions of_shard(std::uint32_t shard) const;
  [[nodiscard]] Permissions of_all() const;
  [[nodiscard]] Permissions of_any() const;

  /// Reads the shard's mode and owner. @return true if they have changed. Any thread may call: of two looks
  /// at once, the one that has begun later counts.
  Result<bool> look(std::uint32_t shard);

 private:
  const Snapshots& snapshots_;
  const Overrides overrides_;
  std::atomic<std::uint64_t> looks_ = 0;
  mutable Mutex mutex_;
  std::vector<std::optional<Permissions>> found_
      GUARDED_BY(mutex_);                                 // by shard, of its file; none without a file
  std::vector<std::uint64_t> newest_ GUARDED_BY(mutex_);  // by shard: the number of the look in `found_`
  std::vector<std::optional<Permissions>> shown_ GUARDED_BY(mutex_);  // by shard
  Permissions of_all_ GUARDED_BY(mutex_);                             // these two combine the shards'
  Permissions of_any_ GUARDED_BY(mutex_);
};

}  // namespace stfs
