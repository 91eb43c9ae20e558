// What the CUDA runtime complains of, for a person.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "core/base/error.h"

namespace stfs::upload {

/// One sentence for each way in which there is no GPU: no driver, one that is too old, the Toolkit's stub, no
/// device, no access, and so on; else CUDA's own words.
std::string explain_cuda(cudaError_t error);

/// "DEVICE: WHAT: WHY". ENOMEM, ENODEV or EIO. The error is told here, so the runtime forgets it as the
/// calling thread's last error.
tl::unexpected<Error> fail_cuda(std::string_view device, std::string_view what, cudaError_t error);

}  // namespace stfs::upload
