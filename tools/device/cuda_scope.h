// Makes a GPU the calling thread's device for a while.
//
// Programs that upload have devices of their own: a thread of PyTorch goes on with its GPU after a call of
// ours. cudaGetDevice() of this library's runtime does not know what another copy of the runtime has chosen.
// The driver knows: all copies share the thread's current context. So the context is what is put back.
#pragma once

#include <cuda_runtime_api.h>

#include "tools/device/device.h"

namespace stfs::upload {

/// For one thread. Scopes may be nested. The first scope of a device in a process creates its primary
/// context.
class CudaScope {
 public:
  explicit CudaScope(const Device& device);
  /// Puts the thread's context back, also where there was none.
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

  /// Why the device could not be made the current one; cudaSuccess where it is.
  [[nodiscard]] cudaError_t error() const { return error_; }

 private:
  void* previous_ = nullptr;  // CUcontext
  bool has_previous_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace stfs::upload
