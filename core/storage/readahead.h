// Notices reads that come in order, and says what to fetch before it is asked for. The kernel does so too,
// but only 128 KiB at a time, which on a store with a long way keeps the reader waiting most of the time.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "core/base/byte_range.h"

namespace stfs {

/// Any thread may call: the kernel's requests for one file are served by several threads, and come a little
/// out of order.
class Readahead {
 public:
  /// What is fetched at a time.
  static constexpr std::uint64_t kStepBytes = 4 << 20;
  /// As far as that goes before the last read.
  static constexpr std::uint64_t kAheadBytes = 8 << 20;
  /// Reads this far from where the last one ended still belong to it.
  static constexpr std::uint64_t kSlackBytes = 2 << 20;
  /// So much has to be read in order first.
  static constexpr std::uint64_t kBeginBytes = 256 << 10;
  /// So many files or places are read at a time; of more, the one that was not read for longest is forgotten.
  static constexpr std::size_t kMostRuns = 16;

  /// @param read  what somebody has just read, not empty
  /// @return  what to fetch now, empty where that is nothing. May reach behind the end of the file.
  [[nodiscard]] ByteRange after(ByteRange read);

 private:
  /// Reads in order. Of size 0: none yet.
  struct Run {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t read_bytes = 0;
    std::uint64_t fetched_end = 0;
    std::uint64_t reads = 0;
    std::uint64_t last_used = 0;
  };
  Run& run_of(ByteRange read);

  std::mutex mutex_;  // guards what follows; innermost
  std::array<Run, kMostRuns> runs_;
  std::uint64_t clock_ = 0;
};

}  // namespace stfs
