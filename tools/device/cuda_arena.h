// Arenas in a GPU's memory.
//
// One that can be shared is made by the driver's virtual memory functions, which export memory as a file
// descriptor and let an importer map it read-only. The driver's library is never linked: its functions are
// asked for where they are needed, so that this program starts where there is no driver.
#pragma once

#include <memory>

#include "tools/device/arena.h"

namespace stfs::upload {

/// The calling thread is in a CudaScope of the device, here and below.
Result<std::shared_ptr<Arena>> allocate_cuda_arena(const Device& device, std::uint64_t size_bytes,
                                                   bool is_shareable);

/// @return EINVAL where the memory lies on another GPU.
Result<std::shared_ptr<Arena>> adopt_cuda_arena(const Device& device, UniqueFd descriptor,
                                                std::uint64_t size_bytes);

}  // namespace stfs::upload
