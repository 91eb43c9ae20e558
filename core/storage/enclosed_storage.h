// Reads the files of one directory that another user may have filled, and nothing outside of it.
//
// No component of a path below the directory is followed if it is a link, also while somebody replaces one by
// a link (openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS). The path of the directory itself may have
// links: the caller has named it.
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

/// Opens a path below an open directory. ELOOP: a component is a link, or the path leads out of it.
/// @param flags  of open(2).
/// @param uses_openat2  false: component by component, as on a kernel without openat2(2).
/// @return no descriptor: errno says why.
UniqueFd open_beneath(int directory, const std::filesystem::path& path, int flags, bool uses_openat2 = true);

/// Takes absolute paths and those that begin as the directory was named. Everything that changes something
/// fails (EROFS). Any thread may call.
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
  [[nodiscard]] Result<UniqueFd> opened(const std::filesystem::path& path, int flags) const;

  const UniqueFd directory_;
  const std::array<std::filesystem::path, 3> names_;  // as it was named, absolute, and without links
};

}  // namespace stfs
