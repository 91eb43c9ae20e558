// The GPUs of this machine, by the driver alone: no context is created, so a look takes no memory of a GPU
// and works beside a GPU that is broken or taken.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/device/cuda_driver.h"
#include "tools/device/device.h"

namespace stfs::upload {

/// Free memory of the GPU with this UUID, in bytes; nothing where it can't be had.
using FreeMemoryOf = std::function<std::optional<std::uint64_t>(const std::string& uuid)>;

/// One row for each GPU, in the driver's order. A GPU that does not answer is in the list with the reason in
/// its `problem`; the others are not affected.
/// @return the driver's error where nothing at all can be listed.
struct CudaDeviceRows {
  std::vector<DeviceInfo> devices;
  CUresult error = CUDA_SUCCESS;
};
CudaDeviceRows list_cuda_devices(const CudaDriver& driver, const FreeMemoryOf& free_memory_of);

/// Asks NVIDIA's management library, which the driver brings along and which needs no context either. Loaded
/// at the first call; nothing where it is not installed.
std::optional<std::uint64_t> managed_free_memory(const std::string& uuid);

}  // namespace stfs::upload
