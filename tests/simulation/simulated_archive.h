// The archive of a simulation: which tensors it has, their bytes, and where they lie in the file.
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
  /// Bytes that were never there before.
  Buffer fresh(std::uint64_t size_bytes);
  /// Fresh ones of all tensors, which have other sizes once in a while.
  Contents draw(Choices& choices);
  /// Who may read and write it, of users 0 to 3 with groups of their own.
  static DiskAccess draw_access(Choices& choices);
  /// The file that holds them. Later calls are about this one.
  Buffer bytes_of(const Contents& contents);
  [[nodiscard]] const ByteRange& place_of(const std::string& tensor) const { return places_.at(tensor); }
  /// What lies in the file, whatever journals say; none where it was cut.
  [[nodiscard]] std::optional<Contents> stored_in(const DiskImage& image, InodeNumber inode) const;

 private:
  std::map<std::string, ByteRange> places_;
  std::uint64_t drawn_ = 0;  // contents, so that none comes twice
};

}  // namespace stfs::test
