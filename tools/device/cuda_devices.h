// Lists the GPUs of this machine with the driver only. No context is created: the list takes no memory of a
// GPU, and one GPU that is broken or taken does not affect the others.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/device/cuda_driver.h"
#include "tools/device/device.h"

namespace stfs::device {

/// Returns the free memory of the GPU with this UUID, in bytes; nothing if it is unknown.
using FreeMemoryOf = std::function<std::optional<std::uint64_t>(const std::string& uuid)>;

/// One row for each GPU, in the driver's order. A GPU that does not answer stays in the list with the reason
/// in its `problem`; the other rows are not affected. `error` is the driver's error if no GPU could be
/// listed.
struct CudaDeviceRows {
  std::vector<DeviceInfo> devices;
  CUresult error = CUDA_SUCCESS;
};
CudaDeviceRows list_cuda_devices(const CudaDriver& driver, const FreeMemoryOf& free_memory_of);

/// Asks NVIDIA's management library, which the driver installs and which needs no context. The library is
/// loaded at the first call. Nothing: it is not installed.
std::optional<std::uint64_t> managed_free_memory(const std::string& uuid);

}  // namespace stfs::device
