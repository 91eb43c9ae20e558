// The dtype that a user asks an upload to convert to, by its name.
#pragma once

#include <string_view>

#include "core/base/error.h"
#include "core/format/dtype.h"

namespace stfs::upload {

/// The dtype of that name in any case: "BF16", "bf16".
/// @return EINVAL where no dtype is called so or nothing is converted to it, with the names of those that can
/// be.
Result<Dtype> conversion_target_named(std::string_view name);

/// The error of conversion_target_named() for that text.
tl::unexpected<Error> refuse_conversion_target(std::string_view name);

}  // namespace stfs::upload
