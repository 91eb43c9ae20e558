// Runs independent pieces of work on several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/base/error.h"

namespace stfs {

/// The number of processors that this process may use, at least 1.
unsigned usable_processors();

/// The most threads of one run_parallel(). More are no faster, and a process may not be able to start them.
inline constexpr unsigned kMostWorkers = 1024;

/// The number of threads that share `count` pieces of work if a user asks for `threads`: at most one for each
/// piece, and at most kMostWorkers. 0 only if there is no work.
unsigned worker_count(std::size_t count, std::uint64_t threads);

/// Calls work(index, worker) once for each index below `count`, in ascending order, on up to
/// worker_count(count, threads) threads at a time. `worker` is below that number and identifies the thread.
/// If threads can't be started, fewer do the work. After the first failure no further call begins.
/// @return the failure of the lowest index that failed.
Result<void> run_parallel(std::size_t count, unsigned threads,
                          const std::function<Result<void>(std::size_t index, unsigned worker)>& work);

}  // namespace stfs
