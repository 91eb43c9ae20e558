// The error for bytes of a published version that are not what they must be.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "core/base/error.h"

namespace stfs::sync {

/// InvalidArgument (EINVAL) with that message.
template <class... Parts>
[[nodiscard]] tl::unexpected<Error> damaged(fmt::format_string<Parts...> format, Parts&&... parts) {
  return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format(format, std::forward<Parts>(parts)...));
}

}  // namespace stfs::sync
