// Writes a whole new archive: header first, then each tensor's bytes as they come.
//
// The archive appears under its name only when it is whole and on stable storage (core/storage/new_file.h); a
// writer that goes away earlier leaves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/format/header.h"
#include "core/storage/new_file.h"

namespace stfs {

class ArchiveWriter {
 public:
  /// Starts an archive whose tensors are `tensors`, in that order. Fails with EEXIST where the path
  /// exists and replace is false. Data start on a multiple of 4096, with 64 KiB of header slack, so
  /// that later edits of the header need not move the data (DURABILITY.md).
  static Result<ArchiveWriter> create(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                                      const Metadata& metadata, bool replace);

  /// Appends data: the tensors' bytes one after the other, cut into pieces as the caller likes. After
  /// a failure here or in finish() the temporary file is gone, and so is the writer's use.
  Result<void> append(std::span<const std::byte> bytes);

  /// Checks that exactly the promised bytes came; then as NewFile::finish().
  Result<void> finish();

 private:
  ArchiveWriter(std::filesystem::path path, NewFile file, std::uint64_t expected_bytes)
      : path_(std::move(path)), file_(std::move(file)), expected_bytes_(expected_bytes) {}

  std::filesystem::path path_;
  NewFile file_;
  std::uint64_t expected_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
};

}  // namespace stfs
