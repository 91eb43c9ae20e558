// Addresses of an archive's pages, for programs that ask for the pages themselves.
#pragma once

#include <cstddef>

#include "core/archive/archive.h"

namespace stfs::interface {

/// Nothing here or behind it reads through such an address: a page that is gone would be a SIGBUS (stfs.h,
/// MAPPED DATA). The program that asked for pages has been told so, and reads them itself.
class ForeignPages {
 public:
  /// Of the first byte of the range, or null where it is not in a map: the store can't be mapped, or a
  /// journal lies over the archive.
  static std::byte* address(const Archive& archive, ByteRange file_range) {
    if (!archive.is_as_in_file()) return nullptr;
    return const_cast<std::byte*>(
        archive.bytes().span(file_range).bytes_.data());  // NOLINT: the pages are read-only
  }
};

}  // namespace stfs::interface
