// Makes a GPU the calling thread's device for a limited time.
//
// Programs that upload use devices of their own: a thread of PyTorch continues with its GPU after a call of
// this library. cudaGetDevice() of this library's runtime does not know what another copy of the runtime has
// chosen. The driver does: all copies share the thread's current context. Therefore the context is what is
// restored.
#pragma once

#include <cuda_runtime_api.h>

#include "tools/device/device.h"

namespace stfs::upload {

/// Used by one thread. Scopes may be nested. The first scope of a device in a process creates the device's
/// primary context.
class CudaScope {
 public:
  explicit CudaScope(const Device& device);
  /// Restores the thread's previous context, also if there was none.
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

  /// Why the device could not become the current one; cudaSuccess if it did.
  [[nodiscard]] cudaError_t error() const { return error_; }

 private:
  void* previous_ = nullptr;  // CUcontext
  bool has_previous_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace stfs::upload
