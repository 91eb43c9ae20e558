// Addresses of an archive's pages for programs that want to access the pages themselves.
#pragma once

#include <cstddef>

#include "core/archive/archive_reader.h"

namespace stfs::interface {

/// This library never reads through these addresses, because touching a lost page raises SIGBUS (stfs.h,
/// MAPPED DATA). The program that asked for the pages knows this and reads them itself.
class ForeignPages {
 public:
  /// Returns the address of the first byte of the range. Null if the range is not in a map: the store cannot
  /// be mapped, or a journal lies over the archive.
  static std::byte* address(const ArchiveReader& archive, ByteRange file_range) {
    if (!archive.is_as_in_file()) return nullptr;
    return const_cast<std::byte*>(archive.bytes().span(file_range).bytes_.data());  // the pages are read-only
  }
};

}  // namespace stfs::interface
