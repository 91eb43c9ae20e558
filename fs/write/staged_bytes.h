// A file's bytes whose number is not known, in parts of a StagingFile. Bytes that were never written are
// zeros and take no space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "fs/write/staging_file.h"

namespace stfs {

/// For one thread at a time, except size_bytes().
class StagedBytes {
 public:
  explicit StagedBytes(std::shared_ptr<StagingFile> file) : file_(std::move(file)) {}
  ~StagedBytes() { resize(0); }
  StagedBytes(const StagedBytes&) = delete;
  StagedBytes& operator=(const StagedBytes&) = delete;

  /// EFBIG if the end would be beyond the largest file.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  /// Returns zeros after the end.
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const;
  /// Truncates the bytes, or adds zeros.
  void resize(std::uint64_t size_bytes);
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// Appends the bytes from an offset on to `to`, which is empty.
  Result<void> copy_to(StagedBytes& to, std::uint64_t offset) const;
  [[nodiscard]] const std::shared_ptr<StagingFile>& file() const { return file_; }

 private:
  struct Part {
    std::uint64_t size_bytes = 0;
    std::uint64_t place = 0;  // in the file
  };
  /// Returns the part with the byte at an offset, or the first part after it.
  [[nodiscard]] std::map<std::uint64_t, Part>::const_iterator part_at(std::uint64_t offset) const;
  /// Makes a part for the byte at an offset that no part has.
  Result<void> add_part(std::uint64_t offset, std::uint64_t wanted_bytes);

  std::shared_ptr<StagingFile> file_;
  std::map<std::uint64_t, Part> parts_;  // by offset; disjoint
  std::uint64_t size_bytes_ = 0;
  std::uint64_t allocated_bytes_ = 0;
};

}  // namespace stfs
