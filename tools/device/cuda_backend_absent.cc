// Replaces the CUDA backend in builds without the CUDA Toolkit.
#include "tools/device/cuda_backend.h"

namespace stfs::device {
namespace {

constexpr const char* kWhy = "this safetensorsfs was built without the CUDA Toolkit: build it with nvcc";

}  // namespace

Result<std::vector<DeviceInfo>> list_cuda_devices() {
  return fail(ErrorCode::NotFound, ENODEV, kWhy);
}

Result<std::shared_ptr<Backend>> open_cuda_backend(const Device& device) {
  return fail(ErrorCode::NotFound, ENODEV, device.name() + ": " + kWhy);
}

}  // namespace stfs::device
