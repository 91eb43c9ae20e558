// The directory `.NAME.scratch` beside a model: it holds the scratch files, which programs make among the
// tensors of a mount and which have no dtype and shape yet.
//
// The first scratch file makes the directory, and the removal of the last one removes it. Scratch files are
// ordinary files, so they survive unmounts and crashes, and two mounts of the model show the same ones. For
// a sharded model the directory is beside the index, and with a delta beside the delta.
//
// Whoever may write the archive may use the directory: directory and files get owner, group and mode as
// journals do (core/journal/journal_access.h). A directory of anybody else, or that others may write, is
// refused. So is a directory that was not made for this model (core/storage/made_directory.h) and gives group
// or others less than a new one would get: another user may have moved a private directory there.
//
// Every call opens the directory anew without following a link, and reaches the files through it. It lies in
// the directory in which the archive was found: another user may give that one's path to another directory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/storage/file.h"
#include "core/storage/open_directory.h"
#include "core/storage/permissions.h"

namespace stfs {

/// Whether a directory of this name holds the scratch files of a model beside it.
bool is_scratch_directory_name(std::string_view name);

/// Any thread may call. Names are names of files in the directory.
class ScratchDirectory {
 public:
  /// @param model    the path of the archive, the index or the delta.
  /// @param archive  the open archive that gets new tensors: its owner and mode tell who may write.
  /// @param at       the archive's path. If it names another file by now, no scratch files are shown or made.
  /// @param storage  must outlive this object.
  ScratchDirectory(const std::filesystem::path& model, std::shared_ptr<const File> archive,
                   const std::filesystem::path& at, Storage& storage);

  static std::filesystem::path path_of(const std::filesystem::path& model);
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// The names of all scratch files, sorted. None without a directory.
  [[nodiscard]] Result<std::vector<std::string>> list() const;
  struct Status {
    std::uint64_t inode = 0;
    std::uint64_t size_bytes = 0;
    std::int64_t mtime_ns = 0;  // since 1970
    Permissions permissions{};
  };
  /// Of an open file.
  static std::optional<Status> status_of(int descriptor);
  /// Nothing if there is no such file, or if the name is not one of a regular file.
  [[nodiscard]] std::optional<Status> status(const std::string& name) const;

  // ENOENT without such a file. EACCES for a directory of somebody who may not write the archive, and where
  // a link or a file has the directory's name.
  /// EEXIST if the name is taken. Makes the directory. The file gets the archive's mode, so that all who may
  /// write the archive can finish it. Users who may only read the archive read the file only if `mode` allows
  /// it: what the umask of its maker has left.
  Result<std::unique_ptr<File>> create(const std::string& name, std::uint32_t mode = 0666);
  /// EPERM for a file that has another name elsewhere.
  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& name) const;
  /// @param replaces  whether it may take the name of another file; else EEXIST.
  Result<void> rename(const std::string& name, const std::string& new_name, bool replaces);
  Result<void> remove(const std::string& name);
  /// Removes an empty directory, which a killed process may leave.
  void tidy();
  /// Brings the names to stable storage.
  Result<void> sync() const;

 private:
  /// The directory of the model. ESTALE if another one has its path.
  [[nodiscard]] Result<OpenDirectory> opened_above() const;
  /// ENOENT without the directory.
  [[nodiscard]] Result<OpenDirectory> opened() const;
  [[nodiscard]] Result<OpenDirectory> opened_in(const OpenDirectory& above) const;
  [[nodiscard]] std::optional<std::string> why_not_ours(const OpenDirectory& above,
                                                        const OpenDirectory& directory,
                                                        const FileStatus& archive) const;
  Result<OpenDirectory> opened_or_made();
  [[nodiscard]] tl::unexpected<Error> failed(int errno_value, const std::string& name,
                                             std::string_view action) const;

  const std::filesystem::path path_;
  const std::shared_ptr<const File> archive_;
  Storage& storage_;
  std::filesystem::path beside_;  // the archive's name; empty if it lies in another directory than the model
  std::optional<FileIdentity> above_;  // of the directory of the model
};

class Model;
/// The scratch directory of a model.
ScratchDirectory scratch_directory_of(const Model& model);
/// The names of a model's scratch files. None if they can't be listed.
std::vector<std::string> scratch_files_of(const Model& model);

}  // namespace stfs
