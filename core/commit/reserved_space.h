// Disk space that an edit will need in the archive, reserved before its commit point: later a full disk would
// leave the archive hidden until there is room again.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/archive_edit.h"

namespace stfs {

/// Gives the space back at its end, unless keep() was called. Move-only. For one thread, which holds the
/// archive's lock for edits meanwhile.
class ReservedSpace {
 public:
  ReservedSpace() = default;
  /// Reserves the bytes by which the archive becomes longer, and those of fillers that become tensors: they
  /// may be holes. ENOSPC, EDQUOT. Does nothing where the file system can't reserve.
  static Result<ReservedSpace> of(Archive& archive, const EditLayout& layout);
  ReservedSpace(ReservedSpace&& other) noexcept { swap(other); }
  ReservedSpace& operator=(ReservedSpace&& other) noexcept {
    swap(other);
    return *this;
  }
  ~ReservedSpace();

  /// Call it when the edit has its commit point.
  void keep() { archive_ = nullptr; }

 private:
  void swap(ReservedSpace& other) noexcept {
    std::swap(archive_, other.archive_);
    std::swap(holes_, other.holes_);
  }

  Archive* archive_ = nullptr;
  std::vector<ByteRange> holes_;
};

}  // namespace stfs
