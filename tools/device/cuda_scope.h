// Makes a GPU the calling thread's device for a limited time.
//
// Programs that upload also use devices themselves: a thread of PyTorch continues with its GPU after a call
// of this library. cudaGetDevice() of this library's runtime does not know the choice of another copy of the
// runtime. The driver does, because all copies share the thread's current context. The context is therefore
// restored.
#pragma once

#include <cuda_runtime_api.h>

#include "tools/device/device.h"

namespace stfs::device {

/// Used by one thread. Scopes may be nested. The first scope of a device in a process creates the device's
/// primary context.
class CudaScope {
 public:
  explicit CudaScope(const Device& device);
  /// Restores the thread's previous context, even if there was none.
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

  /// The reason why the device could not become the current one; cudaSuccess: it did.
  [[nodiscard]] cudaError_t error() const { return error_; }

 private:
  void* previous_ = nullptr;  // CUcontext
  bool has_previous_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace stfs::device
