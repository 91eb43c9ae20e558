// One file without a name beside the archive, for the bytes of all new tensors of a transaction. A
// transaction of thousands of tensors needs only one descriptor.
//
// No place is used twice. If the file system supports holes, unused space is freed at once; otherwise it is
// freed with the file.
#pragma once

#include <cstdint>
#include <memory>

#include "core/archive/archive.h"
#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/storage/file.h"
#include "fs/base/user_counts.h"

namespace stfs {

/// The length of the longest possible file.
inline constexpr std::uint64_t kMostFileBytes = INT64_MAX;

/// Any thread may call.
class StagingFile {
 public:
  /// @param beside  an archive in the directory for the file. Must outlive this object.
  explicit StagingFile(Archive& beside) : beside_(beside) {}

  /// Returns a place for this many bytes, which read as zeros. Takes no disk space. The first call makes the
  /// file: EDQUOT if the user has too many (take_descriptor()). Only users who may write the archive may read
  /// the file.
  Result<std::uint64_t> allocate(std::uint64_t size_bytes);
  /// Call after allocate().
  [[nodiscard]] File& file() const {
    const MutexLock lock(mutex_);
    return *file_;
  }
  /// Frees the whole blocks of a place.
  void free(ByteRange place);

 private:
  Archive& beside_;
  const uid_t user_ = requesting_user();        // the user for whom it is made
  mutable Mutex mutex_;                         // innermost
  UserCounts::Share share_ GUARDED_BY(mutex_);  // of file_
  std::unique_ptr<File> file_ GUARDED_BY(mutex_);
  std::uint64_t end_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stfs
