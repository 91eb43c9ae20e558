// One state of an archive's structure: its tensors and the places of their bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "core/base/byte_range.h"
#include "core/format/header.h"
#include "core/format/tensor_id.h"
#include "core/journal/journal_format.h"
#include "core/storage/byte_source.h"
#include "core/storage/file.h"

namespace stfs {

/// The header of one file, parsed and checked.
struct ArchiveHeader {
  Header content;
  std::uint64_t size_bytes = 0;  // of the JSON, its padding included, without the 8 bytes before it
  std::uint64_t hash = 0;        // XXH3 of the JSON

  /// @param content  as parsed from `json`, which has its padding.
  static std::shared_ptr<const ArchiveHeader> of(Header content, std::string_view json);
  /// Absolute offset in the file of the first byte of data.
  [[nodiscard]] std::uint64_t data_offset() const { return kHeaderLengthBytes + size_bytes; }
  /// The size of a file with this header.
  [[nodiscard]] std::uint64_t file_size_bytes() const;
  /// Returns true if this header keeps a tensor of an earlier header in its place: under its name, under
  /// another name if it was renamed, or in a filler if it was deleted.
  /// @param place  absolute.
  [[nodiscard]] bool keeps(std::string_view name, ByteRange place) const;
};

/// Immutable. A reader pins a version as `std::shared_ptr<const ArchiveVersion>`: positions and ranges of
/// tensors stay the same while the version is pinned. The archive keeps the file open, so a version must not
/// outlive its archive.
///
/// A change of the structure makes a new version. Versions share unchanged parts: a copy-up of overlayfs
/// changes the stamp alone, because the map follows the copy at its old addresses.
struct ArchiveVersion {
  std::shared_ptr<const ArchiveHeader> header;
  /// Size, owner and mode that the file had when the header was read.
  FileStatus status;
  /// The archive's identity in journals. Its size is the size in `status`.
  ArchiveStamp stamp;
  std::shared_ptr<const ByteSource> bytes;
  /// A tensor has the same id in all versions.
  TensorIds ids;

  [[nodiscard]] const TensorIndex& tensors() const { return header->content.tensors; }
  [[nodiscard]] const Metadata& metadata() const { return header->content.metadata; }
  /// The tensor must be in this version (TensorIds::position()).
  [[nodiscard]] Tensor tensor(TensorId id) const { return tensors()[*ids.position(id)]; }
  /// The id of the tensor with exactly this name.
  [[nodiscard]] std::optional<TensorId> find(std::string_view name) const {
    const auto position = tensors().find(name);
    return position ? std::optional(ids.of(*position)) : std::nullopt;
  }
  /// Absolute offset in the file of the first byte of data.
  [[nodiscard]] std::uint64_t data_offset() const { return header->data_offset(); }
  /// Converts a range of the data section to an absolute range of the file.
  [[nodiscard]] ByteRange file_range(ByteRange data) const {
    return {data_offset() + data.offset, data.size_bytes};
  }
  [[nodiscard]] ByteRange file_range(TensorId id) const { return file_range(tensor(id).data); }
};

}  // namespace stfs
