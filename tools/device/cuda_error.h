// Explains errors of the CUDA runtime to the user.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "core/base/error.h"

namespace stfs::device {

/// Returns one sentence for each reason why there is no GPU: no driver, driver too old, the Toolkit's stub,
/// no device, no access, and so on. For other errors returns CUDA's own text.
std::string explain_cuda(cudaError_t error);

/// Returns the error "DEVICE: WHAT: WHY" with ENOMEM, ENODEV or EIO. Also clears the runtime's record of the
/// calling thread's last error, because it is reported here.
tl::unexpected<Error> fail_cuda(std::string_view device, std::string_view what, cudaError_t error);

}  // namespace stfs::device
