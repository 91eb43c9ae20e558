// Arenas in a GPU's memory.
//
// A shareable arena uses the driver's virtual memory functions. They export memory as a file descriptor, and
// an importer can map it read-only. The driver's library is never linked: its functions are looked up when
// they are needed, so that this program also starts without a driver.
#pragma once

#include <memory>

#include "tools/device/arena.h"

namespace stfs::device {

/// Here and below: the calling thread must be in a CudaScope of the device.
Result<std::shared_ptr<Arena>> allocate_cuda_arena(const Device& device, std::uint64_t size_bytes,
                                                   bool is_shareable);

/// @return EINVAL if the memory is on another GPU.
Result<std::shared_ptr<Arena>> adopt_cuda_arena(const Device& device, UniqueFd descriptor,
                                                std::uint64_t size_bytes);

}  // namespace stfs::device
