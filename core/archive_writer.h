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
  static Result<ArchiveWriter> create(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                                      const Metadata& metadata, bool replace);

  ArchiveWriter(ArchiveWriter&&) noexcept = default;
  ArchiveWriter& operator=(ArchiveWriter&&) = delete;
  /// Removes the temporary file of an archive that was not finished.
  ~ArchiveWriter();

  /// Appends data: the tensors' bytes one after the other, cut into pieces as the caller likes. After
  /// a failure here or in finish() the temporary file is gone, and so is the writer's use.
  Result<void> append(std::span<const std::byte> bytes);

  /// Checks that exactly the promised bytes came, gives the file the mode, owner and attributes of the
  /// one that it replaces, syncs, renames, syncs the directory. A symbolic link at the path is
  /// replaced itself; what it points to stays as it is.
  Result<void> finish();

 private:
  ArchiveWriter() = default;
  Result<void> write(std::span<const std::byte> bytes);
  Result<void> write_gathered();
  Result<void> complete();
  void discard();

  std::filesystem::path path_;
  std::filesystem::path temporary_path_;
  UniqueFd file_;  // open until the archive is finished or given up
  std::vector<std::byte> gathered_;
  std::uint64_t expected_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
  bool replace_ = false;
};

}  // namespace stfs
