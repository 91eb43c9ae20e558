// Finds the dtype by name that a user wants an upload to convert to.
#pragma once

#include <string_view>

#include "core/base/error.h"
#include "core/format/dtype.h"

namespace stfs::upload {

/// Returns the dtype of that name in any case: "BF16", "bf16".
/// @return EINVAL if there is no such dtype or no conversion to it; the message has the names of the possible
///         dtypes.
Result<Dtype> conversion_target_named(std::string_view name);

/// The error of conversion_target_named() for that text.
tl::unexpected<Error> refuse_conversion_target(std::string_view name);

}  // namespace stfs::upload
