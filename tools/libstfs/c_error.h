// Converts errors and exceptions of C++ into errors of the C interface.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "core/base/error.h"
#include "tools/libstfs/stfs.h"

namespace stfs::interface {

/// Fills in an stfs_error. @param to  may be null.
void tell(const Error& error, stfs_error* to);

/// Runs the body of a function of the interface. The body returns a Result of a pointer or of nothing. No
/// exception leaves this function, because the caller may be written in C.
/// @return the pointer, or 0. On failure fills *error and returns null or -1.
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

/// Returns the error InvalidArgument (EINVAL).
inline tl::unexpected<Error> refuse(std::string why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, std::move(why));
}

}  // namespace stfs::interface
