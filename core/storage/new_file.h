// A file that appears under its name only when it is whole and on stable storage.
//
// It grows beside its path under a temporary name and is renamed at finish(); a writer that goes away
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
  /// Fails with EEXIST where the path exists and replace is false, and where what is to be replaced is no
  /// regular file.
  static Result<NewFile> create(const std::filesystem::path& path, bool replace);

  NewFile(NewFile&&) noexcept = default;
  NewFile& operator=(NewFile&&) = delete;
  /// Removes the temporary file where finish() has not succeeded.
  ~NewFile();

  /// Takes disk space for so many bytes in all: a full disk shows here, where the file system can tell. What
  /// is not appended is given back.
  Result<void> reserve(std::uint64_t size_bytes);
  /// After a failure here, in reserve() or in finish() the temporary file is gone, and so is the use of this.
  Result<void> append(std::span<const std::byte> bytes);

  /// Gives the file the mode, owner and attributes of the one that it replaces, syncs, renames, syncs the
  /// directory. A symbolic link at the path is replaced itself; what it points to stays as it is.
  Result<void> finish();

  /// Gives the file up.
  void discard();
  [[nodiscard]] bool is_open() const { return static_cast<bool>(file_); }

 private:
  NewFile() = default;
  Result<void> write(std::span<const std::byte> bytes);
  Result<void> write_gathered();
  Result<void> complete();

  std::filesystem::path path_;
  std::filesystem::path temporary_path_;
  UniqueFd file_;  // open until the file is finished or given up
  std::vector<std::byte> gathered_;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t appended_bytes_ = 0;
  bool replace_ = false;
};

}  // namespace stfs
