// Opens the backend of a device.
#include "tools/device/backend.h"

#include "tools/device/cpu_backend.h"
#include "tools/device/cuda_backend.h"

namespace stfs::upload {

Result<std::shared_ptr<Backend>> Backend::open(const Device& device) {
  return guard_memory([&]() -> Result<std::shared_ptr<Backend>> {
    if (device.kind == Device::Kind::Cuda) return open_cuda_backend(device);
    return open_cpu_backend();
  });
}

}  // namespace stfs::upload
