// Reads the files of one directory that another user may have filled, and nothing outside of it.
//
// A link is never followed in a path below the directory, even if another user replaces a component by a link
// at that moment (openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS). The path of the directory itself may
// have links: the caller has named it.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/storage/file.h"

namespace stfs {

/// Opens a path below an open directory. ELOOP: a component is a link, or the path leads out of the
/// directory.
/// @param flags  passed to open(2).
/// @param uses_openat2  false: component by component, as on a kernel without openat2(2).
/// @return no descriptor on failure: errno has the reason.
UniqueFd open_beneath(int directory, const std::filesystem::path& path, int flags, bool uses_openat2 = true);

/// Takes absolute paths, and paths that begin with the directory as the caller named it. Every call that
/// changes something fails (EROFS). open() refuses a file (EPERM) that a user may have moved there without
/// the right to read it (directory_writers.h). Any thread may call.
class EnclosedStorage final : public Storage {
 public:
  static Result<std::shared_ptr<EnclosedStorage>> open(const std::filesystem::path& directory);

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override;
  Result<std::unique_ptr<File>> open_no_link(const std::filesystem::path& path, Access access) override {
    return open(path, access);
  }
  Result<FileStatus> status(const std::filesystem::path& path) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& directory,
                                        const std::string& prefix) override;
  [[nodiscard]] Boot boot() const override { return system_storage().boot(); }

  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& fallback) override;
  Result<void> publish(File& file, const std::filesystem::path& path) override;
  Result<void> remove(const std::filesystem::path& path) override;
  Result<void> sync_directory(const std::filesystem::path& directory) override;

 private:
  EnclosedStorage(UniqueFd directory, std::array<std::filesystem::path, 3> names)
      : directory_(std::move(directory)), names_(std::move(names)) {}
  /// @param above  gets the directory in which the last name of the path was found. Null: not wanted.
  [[nodiscard]] Result<UniqueFd> opened(const std::filesystem::path& path, int flags,
                                        UniqueFd* above = nullptr) const;

  const UniqueFd directory_;
  const std::array<std::filesystem::path, 3> names_;  // as the caller named it, absolute, and without links
};

}  // namespace stfs
