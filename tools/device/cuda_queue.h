// A queue that is a CUDA stream.
#pragma once

#include <memory>

#include "tools/device/backend.h"

namespace stfs::device {

/// The calling thread must be in a CudaScope of the device. The queue's methods open separate scopes.
Result<std::unique_ptr<Queue>> open_cuda_queue(const Device& device);

}  // namespace stfs::device
