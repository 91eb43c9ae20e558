// Access to NVIDIA GPUs. CMake builds cuda_backend.cc if it finds the CUDA Toolkit, else
// cuda_backend_absent.cc, which reports that CUDA is not built in.
#pragma once

#include <memory>
#include <vector>

#include "tools/device/backend.h"
#include "tools/device/device.h"

namespace stfs::device {

/// @return ENODEV with one sentence that gives the reason why there is no GPU.
Result<std::vector<DeviceInfo>> list_cuda_devices();

/// @return the errors of Backend::open().
Result<std::shared_ptr<Backend>> open_cuda_backend(const Device& device);

}  // namespace stfs::device
