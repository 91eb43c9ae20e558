// Chooses what to fetch with a read of a remote archive.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/base/mutex.h"

namespace stfs {

/// Any thread may call.
class TensorPlan {
 public:
  /// A tensor up to this size is fetched as one.
  static constexpr std::uint64_t kSmallBytes = 64 << 20;
  /// What a read of a larger tensor fetches at first.
  static constexpr std::uint64_t kLeastBytes = 1 << 20;

  /// @param json  the archive's header. A header that is not valid gives a plan without tensors.
  TensorPlan(std::string_view json, std::uint64_t file_size_bytes);

  /// Returns the range to fetch for a read. It contains the read, and is inside the file.
  [[nodiscard]] ByteRange around(ByteRange read);

 private:
  /// The tensor with this byte, or the space between two tensors.
  [[nodiscard]] std::size_t find(std::uint64_t offset) const;
  [[nodiscard]] ByteRange tensor(std::size_t at) const {
    return {begins_[at], begins_[at + 1] - begins_[at]};
  }

  std::vector<std::uint64_t> begins_;  // of each tensor in order, then the end of the file; the first is 0
  Mutex mutex_;
  // Of the last read:
  std::size_t tensor_ GUARDED_BY(mutex_) = 0;
  std::uint64_t end_ GUARDED_BY(mutex_) = UINT64_MAX / 2;  // at first, no read follows it
  /// The program has gone on from one tensor to the next.
  bool is_reading_on_ GUARDED_BY(mutex_) = false;
  std::uint64_t ahead_bytes_ GUARDED_BY(mutex_) = kLeastBytes;
};

}  // namespace stfs
