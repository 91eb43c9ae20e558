// Runs independent pieces of work on several threads.
#pragma once

#include <cstddef>
#include <functional>

#include "core/base/error.h"

namespace stfs {

/// The number of processors that this process may use, at least 1.
unsigned usable_processors();

/// Calls work(index, worker) once for each index below `count`, in ascending order, on up to `threads`
/// threads at a time. `worker` is below `threads` and tells the threads apart. After the first failure no
/// further call begins.
/// @return the failure of the lowest index that failed. If threads can't be started, fewer do the work.
Result<void> run_parallel(std::size_t count, unsigned threads,
                          const std::function<Result<void>(std::size_t index, unsigned worker)>& work);

}  // namespace stfs
