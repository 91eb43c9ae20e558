// Runs many jobs on several threads. The calling thread reports the progress and may stop them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/base/error.h"

namespace stfs::tools {

/// What jobs and the calling thread tell each other. Any number of threads may call.
class JobStatus {
 public:
  /// Adds bytes to the progress.
  void advance(std::uint64_t bytes) { done_bytes_ += bytes; }
  /// Whether the caller or a failure has stopped the work. A long job asks often, and returns early if so.
  [[nodiscard]] bool is_stopped() const { return is_stopped_; }

  void stop() { is_stopped_ = true; }
  [[nodiscard]] std::uint64_t done_bytes() const { return done_bytes_; }

 private:
  std::atomic<std::uint64_t> done_bytes_ = 0;
  std::atomic<bool> is_stopped_ = false;
};

/// Runs one job. A failure stops all others.
using Job = std::function<Result<void>(std::size_t number, JobStatus& status)>;

/// Runs on the calling thread with the bytes of all work that is done. False stops the work.
using Watch = std::function<bool(std::uint64_t done_bytes)>;

/// Runs the jobs 0 to count - 1, each once. Threads take them in ascending order.
/// @param threads  at least 1; fewer are used if the system gives no more.
/// @param watch  runs from time to time, and once at the end.
/// @return the failure of a job; false if `watch` has stopped the work: some jobs have then not run, or not
///   to their end.
[[nodiscard]] Result<bool> run_jobs(std::size_t count, std::uint64_t threads, const Watch& watch,
                                    const Job& job);

}  // namespace stfs::tools
