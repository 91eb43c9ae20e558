// Handles structures that may grow (stfs.h, VERSIONS): the caller may have been compiled with an older or
// newer version.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/base/error.h"
#include "tools/libstfs/c_error.h"

namespace stfs::interface {

/// Returns a copy of the caller's structure. Fields that the caller does not know are 0.
/// @return EINVAL if struct_bytes is not set, or if the caller sets a field that this version does not know.
template <class Struct>
Result<Struct> take_struct(const Struct* given) {
  const std::size_t size_bytes = given->struct_bytes;
  if (size_bytes < sizeof given->struct_bytes) return refuse("struct_bytes is not set");
  const auto* bytes = reinterpret_cast<const std::byte*>(given);
  for (std::size_t at = sizeof(Struct); at < size_bytes; ++at) {
    if (bytes[at] != std::byte{0}) {
      return refuse(
          "struct_bytes is larger than this version of libstfs knows, and the additional bytes are not 0");
    }
  }
  Struct known{};
  std::memcpy(&known, given, std::min(size_bytes, sizeof known));
  return known;
}

/// Fills in the fields that the caller knows.
template <class Struct>
Result<void> give_struct(Struct known, Struct* to) {
  const std::size_t size_bytes = to->struct_bytes;
  if (size_bytes < sizeof to->struct_bytes) return refuse("struct_bytes is not set");
  known.struct_bytes = size_bytes;
  std::memcpy(to, &known, std::min(size_bytes, sizeof known));
  return {};
}

}  // namespace stfs::interface
