// The way to NVIDIA GPUs. Built as cuda_backend.cc where CMake finds the CUDA Toolkit, else as
// cuda_backend_absent.cc, which says that it is not built in.
#pragma once

#include <memory>
#include <vector>

#include "tools/device/backend.h"
#include "tools/device/device.h"

namespace stfs::upload {

/// @return ENODEV with one sentence that says why there is none.
Result<std::vector<DeviceInfo>> list_cuda_devices();

/// @return as Backend::open().
Result<std::shared_ptr<Backend>> open_cuda_backend(const Device& device);

}  // namespace stfs::upload
