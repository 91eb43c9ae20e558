// A stream of a GPU as a queue.
#pragma once

#include <memory>

#include "tools/device/backend.h"

namespace stfs::upload {

/// The calling thread is in a CudaScope of the device; the queue's own calls make scopes of their own.
Result<std::unique_ptr<Queue>> open_cuda_queue(const Device& device);

}  // namespace stfs::upload
