// A stream of a GPU as a queue.
#pragma once

#include <memory>

#include "tools/upload/backend.h"

namespace stfs::upload {

/// The calling thread has called cudaSetDevice(); the queue's own calls do so again.
Result<std::unique_ptr<Queue>> open_cuda_queue(const Device& device);

}  // namespace stfs::upload
