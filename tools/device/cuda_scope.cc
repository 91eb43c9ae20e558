// Saves and restores the driver's current context.
#include "tools/device/cuda_scope.h"

#include "tools/device/cuda_driver.h"

namespace stfs::device {

CudaScope::CudaScope(const Device& device) {
  const CudaDriverAnswer answer = cuda_driver();
  if (answer.driver != nullptr) {
    CUcontext context = nullptr;
    // Before the driver's first cuInit() the thread has no context, so the context to restore is null.
    has_previous_ =
        answer.driver->current(&context) == CUDA_SUCCESS || answer.driver->init(0) == CUDA_SUCCESS;
    previous_ = context;
  }
  error_ = cudaSetDevice(device.index);
}

CudaScope::~CudaScope() {
  if (has_previous_) cuda_driver().driver->set_current(static_cast<CUcontext>(previous_));
}

}  // namespace stfs::device
