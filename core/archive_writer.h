// Writes a whole new archive: header first, then each tensor's bytes as they come.
//
// The archive appears under its name only when it is whole and on stable storage: it grows beside it
// under a temporary name and is renamed at finish(); a writer that goes away earlier leaves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/header.h"
#include "core/unique_fd.h"

namespace stfs {

class ArchiveWriter {
 public:
  /// Starts an archive whose tensors are `tensors`, in that order. Fails with EEXIST where the path
  /// exists and replace is false. Data start on a multiple of 4096, with 64 KiB of header slack, so
  /// that later edits of the header need not move the data (DURABILITY.md).
  static Result<ArchiveWriter> create(const std::filesystem::path& path,
                                      std::span<const TensorSpec> tensors, const Metadata& metadata,
                                      bool replace);

  ArchiveWriter(ArchiveWriter&&) noexcept = default;
  ArchiveWriter& operator=(ArchiveWriter&&) = delete;
  /// Removes the temporary file of an archive that was not finished.
  ~ArchiveWriter();

  /// Appends data: the tensors' bytes one after the other, cut into pieces as the caller likes.
  Result<void> append(std::span<const std::byte> bytes);

  /// Checks that exactly the promised bytes came, syncs, renames, syncs the directory.
  Result<void> finish();

 private:
  ArchiveWriter() = default;

  std::filesystem::path path_;
  std::filesystem::path temporary_path_;
  UniqueFd file_;
  std::uint64_t expected_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
  bool replace_ = false;
};

}  // namespace stfs
