// Errors and exceptions of C++ as the C interface tells them.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "core/base/error.h"
#include "tools/libstfs/stfs.h"

namespace stfs::interface {

/// @param to  may be null.
void tell(const Error& error, stfs_error* to);

/// Runs the body of a function of the interface, which returns a Result of a pointer or of nothing. No
/// exception gets out: who calls may be written in C.
/// @return the pointer, or 0; null or -1 where it failed, and *error is filled.
template <class Body>
auto answer(stfs_error* error, Body&& body) {
  using Value = typename std::invoke_result_t<Body>::value_type;
  try {
    auto result = body();
    if constexpr (std::is_void_v<Value>) {
      if (result) return 0;
      tell(result.error(), error);
      return -1;
    } else {
      if (result) return *result;
      tell(result.error(), error);
      return Value{nullptr};
    }
  } catch (const std::bad_alloc&) {
    tell(Error{ErrorCode::OutOfMemory, ENOMEM, "out of memory"}, error);
  } catch (const std::exception& unforeseen) {
    tell(Error{ErrorCode::System, EIO, unforeseen.what()}, error);
  }
  if constexpr (std::is_void_v<Value>) {
    return -1;
  } else {
    return Value{nullptr};
  }
}

/// InvalidArgument (EINVAL).
inline tl::unexpected<Error> refuse(std::string why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, std::move(why));
}

}  // namespace stfs::interface
