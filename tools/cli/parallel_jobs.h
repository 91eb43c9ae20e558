// Runs many jobs on several threads. The calling thread shows the progress and watches for signals.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "tools/cli/progress.h"

namespace stfs::tools {

/// What jobs and the calling thread tell each other. Any number of threads may call.
class JobStatus {
 public:
  /// Adds bytes to the progress.
  void advance(std::uint64_t bytes) { done_bytes_ += bytes; }
  /// Whether the user has interrupted the command. A long job asks often, and returns early if so.
  [[nodiscard]] bool is_stopped() const { return is_stopped_; }

  void stop() { is_stopped_ = true; }
  [[nodiscard]] std::uint64_t done_bytes() const { return done_bytes_; }

 private:
  std::atomic<std::uint64_t> done_bytes_ = 0;
  std::atomic<bool> is_stopped_ = false;
};

/// Runs one job. Throws nothing: an exception would end the process.
using Job = std::function<void(std::size_t number, JobStatus& status)>;

/// Runs the jobs 0 to count - 1, each once. Threads take them in ascending order.
/// @param threads  at least 1; fewer are used if the system gives no more.
/// @return false if interrupted() (interrupt.h): some jobs have then not run, or not to their end.
[[nodiscard]] bool run_jobs(std::size_t count, std::uint64_t threads, Progress& progress, const Job& job);

}  // namespace stfs::tools
