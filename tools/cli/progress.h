// One line on the terminal that shows the progress of long work.
#pragma once

#include <chrono>
#include <cstdint>

#include "core/base/work.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

/// Draws only on a terminal, and only after the work has taken a second: short work needs no progress line.
class Progress {
 public:
  Progress(Streams& streams, std::uint64_t total_bytes);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Erases the line, so that the next output starts on a clean line.
  ~Progress();

  void advance(std::uint64_t bytes) { show(done_bytes_ + bytes); }
  /// @param done_bytes  of all the work so far.
  void show(std::uint64_t done_bytes);

 private:
  using Clock = std::chrono::steady_clock;

  Streams& streams_;
  std::uint64_t total_bytes_;
  std::uint64_t done_bytes_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_ = start_;
  bool visible_ = false;
};

/// Draws the passes of a Work, and stops it if interrupted() (interrupt.h). Destroy the Work before the next
/// output. The streams must outlive it.
Work::Watch watch_on(Streams& streams);

}  // namespace stfs::tools
