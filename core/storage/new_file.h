// A file that gets its name only when it is whole and on stable storage.
//
// It grows beside its path under a temporary name, and finish() renames it. A writer that is destroyed
// earlier leaves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

class NewFile {
 public:
  /// EEXIST if the path exists and `replace` is false. Fails if the file to be replaced is not a regular
  /// file.
  static Result<NewFile> create(const std::filesystem::path& path, bool replace);

  NewFile(NewFile&&) noexcept = default;
  NewFile& operator=(NewFile&&) = delete;
  /// Removes the temporary file, unless finish() has succeeded.
  ~NewFile();

  /// Preallocates so many bytes in all: a full disk fails here, if the file system can tell. finish() frees
  /// what was not appended.
  Result<void> reserve(std::uint64_t size_bytes);
  /// Appends bytes. After a failure here, in reserve() or in finish() the temporary file is gone, and this
  /// object is unusable.
  Result<void> append(std::span<const std::byte> bytes);

  /// Gives the file the mode, owner and attributes of the file that it replaces, syncs it, renames it, and
  /// syncs the directory. A symbolic link at the path is itself replaced; its target stays as it is.
  Result<void> finish();

  /// Removes the temporary file.
  void discard();
  [[nodiscard]] bool is_open() const { return static_cast<bool>(file_); }

 private:
  NewFile() = default;
  Result<void> write(std::span<const std::byte> bytes);
  Result<void> write_gathered();
  Result<void> complete();

  std::filesystem::path path_;
  std::filesystem::path temporary_path_;
  UniqueFd file_;  // open until finish() or discard()
  std::vector<std::byte> gathered_;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t appended_bytes_ = 0;
  bool replace_ = false;
};

}  // namespace stfs
