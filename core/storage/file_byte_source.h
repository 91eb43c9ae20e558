// Reads the bytes of a file: by system calls, and by a map of the file if its store can be mapped. System
// calls copy, and report failures of the store as errors. A map costs no copy, but reports failures only by a
// signal. The map is used for replies to the kernel, and for copies of few bytes from distant places
// (mapped_region.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/storage/byte_source.h"
#include "core/storage/file.h"
#include "core/storage/mapped_region.h"
#include "core/storage/readahead.h"

namespace stfs {

/// Auto: only system calls on the stores of unmappable_store.h and if mapping fails, otherwise a map as well.
enum class Io : std::uint8_t { Auto, Mmap, Pread };

class FileByteSource final : public ByteSource {
 public:
  /// @param file         the archive's file; must outlive the source
  /// @param size_bytes   the file's current size
  /// @param room_bytes   how much longer the file may become before the map is too short
  static Result<std::unique_ptr<FileByteSource>> open(const File& file, std::uint64_t size_bytes, Io io,
                                                      std::uint64_t room_bytes = 0);

  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override;
  [[nodiscard]] Result<MappedSpan> map(ByteRange range) const override;
  [[nodiscard]] MappedSpan span(ByteRange range) const override;
  [[nodiscard]] bool copy_from(ByteRange range, const Copy& copy) const override;
  [[nodiscard]] Result<void> check(ByteRange range) const override;
  [[nodiscard]] bool is_mapped() const override { return map_.has_value(); }
  [[nodiscard]] std::string_view why_not_mapped() const override { return why_not_mapped_; }

  /// Switches to a copy of the file (a copy-up of overlayfs). Other threads may read at the same time. Spans
  /// of the map stay valid, and show the copy.
  /// @param copy  an open file of the copy; must outlive the source.
  Result<void> follow(const File& copy);
  /// Notes the size that our own edit has given the file. @return false if the map is too short for it.
  [[nodiscard]] bool resize(std::uint64_t size_bytes);
  /// Switches only the map: reads through the current file reach the copy anyway. `copy` need not stay open.
  Result<void> remap(const File& copy);

 private:
  FileByteSource(const File& file, std::uint64_t size_bytes) : file_(&file), size_bytes_(size_bytes) {}

  std::atomic<const File*> file_;
  std::atomic<std::uint64_t> size_bytes_;
  std::optional<MappedRegion> map_;
  std::string_view why_not_mapped_;
  mutable Readahead readahead_;
};

}  // namespace stfs
