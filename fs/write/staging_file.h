// One file without a name beside the archive, for the bytes of all new tensors of a transaction: a
// transaction of thousands of tensors needs one descriptor.
//
// No place is used twice. Where the file system has holes, space that nobody uses any more goes back at once,
// else with the file.
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

/// No file is longer.
inline constexpr std::uint64_t kMostFileBytes = INT64_MAX;

/// Any thread may call.
class StagingFile {
 public:
  /// @param beside  lies in the directory for the file. Must outlive this object.
  explicit StagingFile(Archive& beside) : beside_(beside) {}

  /// Returns a place for so many bytes, which read as zeros. Takes no disk space. The first call makes the
  /// file: EDQUOT if the user has too many (take_descriptor()). Whoever may write the archive may read it,
  /// nobody else.
  Result<std::uint64_t> allocate(std::uint64_t size_bytes);
  /// Call after allocate().
  [[nodiscard]] File& file() const {
    const MutexLock lock(mutex_);
    return *file_;
  }
  /// Gives the whole blocks of a place back.
  void free(ByteRange place);

 private:
  Archive& beside_;
  const uid_t user_ = requesting_user();        // for whom it is made
  mutable Mutex mutex_;                         // innermost
  UserCounts::Share share_ GUARDED_BY(mutex_);  // of file_
  std::unique_ptr<File> file_ GUARDED_BY(mutex_);
  std::uint64_t end_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stfs
