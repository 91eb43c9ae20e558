// The archive of a simulation: its tensors, their bytes, and their places in the file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/byte_range.h"
#include "tests/simulation/fuse_wire.h"
#include "tests/support/choices.h"
#include "tests/support/disk_image.h"

namespace stfs::test {

inline constexpr std::string_view kTensorNames[] = {"a", "b", "c", "d"};

/// The bytes of each tensor.
using Contents = std::map<std::string, Buffer>;

class SimulatedArchive {
 public:
  /// Returns bytes that were never in the archive before.
  Buffer fresh(std::uint64_t size_bytes);
  /// Draws new bytes for all tensors. Some draws change the sizes.
  Contents draw(Choices& choices);
  /// Draws the owner and mode of the archive, for users 0 to 3, each with a group.
  static DiskAccess draw_access(Choices& choices);
  /// Returns a file with these contents. Later calls refer to this file.
  Buffer bytes_of(const Contents& contents);
  [[nodiscard]] const ByteRange& place_of(const std::string& tensor) const { return places_.at(tensor); }
  /// Returns the tensors in the file, without the journals, or nothing if the file was cut.
  [[nodiscard]] std::optional<Contents> stored_in(const DiskImage& image, InodeNumber inode) const;

 private:
  std::map<std::string, ByteRange> places_;
  std::uint64_t drawn_ = 0;  // number of contents, so that none comes twice
};

}  // namespace stfs::test
