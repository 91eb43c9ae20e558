// Detects sequential reads, and decides which range to fetch ahead of them. The kernel reads ahead as well,
// but only 128 KiB at a time: on a remote store the reader then waits most of the time.
#pragma once

#include <array>
#include <cstdint>

#include "core/base/byte_range.h"
#include "core/base/mutex.h"

namespace stfs {

/// Any thread may call. Several threads serve the kernel's requests for one file, so reads arrive slightly
/// out of order.
class Readahead {
 public:
  /// The number of bytes to fetch at a time.
  static constexpr std::uint64_t kStepBytes = 4 << 20;
  /// The number of bytes to fetch beyond the last read.
  static constexpr std::uint64_t kAheadBytes = 8 << 20;
  /// A read at most this far from the end of the last one continues its run.
  static constexpr std::uint64_t kSlackBytes = 2 << 20;
  /// The number of bytes that must be read in order before fetching begins.
  static constexpr std::uint64_t kBeginBytes = 256 << 10;
  /// The number of runs that are followed at a time. If there are more, the least recently used is dropped.
  static constexpr std::size_t kMostRuns = 16;

  /// @param read  the range that was just read, not empty
  /// @return the range to fetch now, or an empty one. The range may end beyond the end of the file.
  [[nodiscard]] ByteRange after(ByteRange read);

 private:
  /// A run of reads in order. Size 0: unused.
  struct Run {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t read_bytes = 0;
    std::uint64_t fetched_end = 0;
    std::uint64_t reads = 0;
    std::uint64_t last_used = 0;
  };
  Run& run_of(ByteRange read) REQUIRES(mutex_);

  Mutex mutex_;  // innermost
  std::array<Run, kMostRuns> runs_ GUARDED_BY(mutex_);
  std::uint64_t clock_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stfs
