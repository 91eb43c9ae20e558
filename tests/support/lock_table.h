// A table of open-file-description locks, as a kernel or a lock server keeps it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/byte_range.h"
#include "core/storage/file.h"
#include "tests/support/disk_image.h"

namespace stfs::test {

/// Not synchronized: the disk model's mutex guards it.
class LockTable {
 public:
  using Description = std::uint64_t;  // an open file description, which owns its locks

  /// Takes the lock. It replaces locks of the same description on the range. @return false if a lock of
  /// another description conflicts.
  bool take(InodeNumber inode, Description owner, pid_t process, ByteRange range, LockKind kind);
  /// Whether take() would fail.
  [[nodiscard]] bool has_conflict(InodeNumber inode, Description owner, ByteRange range, LockKind kind) const;
  void give_back(InodeNumber inode, Description owner, ByteRange range);
  /// A process with a lock of another description on the range.
  [[nodiscard]] std::optional<pid_t> holder(InodeNumber inode, Description asking, ByteRange range) const;
  void drop_description(Description owner);
  void drop_process(pid_t process);
  [[nodiscard]] bool empty() const { return locks_.empty(); }

 private:
  struct Lock {
    InodeNumber inode;
    Description owner;
    pid_t process;
    ByteRange range;
    LockKind kind;
  };
  std::vector<Lock> locks_;
};

}  // namespace stfs::test
