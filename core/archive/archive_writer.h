// Writes a whole new archive: the header first, then each tensor's bytes as they arrive.
//
// The archive gets its name only when it is whole and on stable storage (core/storage/new_file.h). A writer
// that is destroyed earlier leaves nothing.
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

struct NewArchiveOptions {
  // Passed to format_header(). Later edits of the header then need not move the data (core/DURABILITY.md).
  std::uint64_t alignment = 4096;
  std::uint64_t slack_bytes = 64 * 1024;
  NewFileMode mode{};  // passed to NewFile::create()
};

class ArchiveWriter {
 public:
  /// Starts an archive with these tensors, in this order. EEXIST if the path exists and `replace` is false.
  static Result<ArchiveWriter> create(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                                      const Metadata& metadata, bool replace,
                                      const NewArchiveOptions& options = {});

  /// Appends data: the tensors' bytes one after another, in pieces of any size. A failure of any call removes
  /// the temporary file and makes the writer unusable.
  Result<void> append(std::span<const std::byte> bytes);

  /// Checks that exactly the announced number of bytes came, then calls NewFile::settle().
  Result<void> settle();
  /// Settles the archive if that was not done, then calls NewFile::finish().
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
