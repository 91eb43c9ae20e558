// The directory `.NAME.scratch` beside a model, with the scratch files that programs make among the
// tensors of a mount. A scratch file has no dtype and shape yet.
//
// The first scratch file makes the directory, and the removal of the last one removes it. Scratch files are
// ordinary files, so they survive unmounts and crashes, and two mounts of the model show the same scratch
// files. For a sharded model the directory is beside the index, and with a delta beside the delta.
//
// A user who may write the archive may use the directory: directory and files get the same owner, group and
// mode as journals (core/journal/journal_access.h). A directory of another user, or one that others
// may write, is refused. A directory that was not made for this model (core/storage/made_directory.h) is also
// refused if it gives group or others less than a new directory would: another user may have moved a private
// directory there.
//
// Each call opens the directory again without following a link, and reaches the files through its descriptor.
// The directory above must be the one in which the archive was found: another user may move another directory
// to this path.
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

/// Returns true if a directory of this name holds the scratch files of a model beside it.
bool is_scratch_directory_name(std::string_view name);

/// Any thread may call. Names are names of files in the directory.
class ScratchDirectory {
 public:
  /// @param model    the path of the archive, the index or the delta.
  /// @param archive  the open archive that gets new tensors. Its owner and mode decide who may write.
  /// @param at       the archive's path. If this path names another file by now, no scratch files are shown
  ///                 or made.
  /// @param storage  must outlive this object.
  ScratchDirectory(const std::filesystem::path& model, std::shared_ptr<const File> archive,
                   const std::filesystem::path& at, Storage& storage);

  static std::filesystem::path path_of(const std::filesystem::path& model);
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Returns the names of all scratch files, sorted. Empty without a directory.
  [[nodiscard]] Result<std::vector<std::string>> list() const;
  struct Status {
    std::uint64_t inode = 0;
    std::uint64_t size_bytes = 0;
    std::int64_t mtime_ns = 0;  // since 1970
    Permissions permissions{};
  };
  /// Returns the status of an open file.
  static std::optional<Status> status_of(int descriptor);
  /// Returns nothing if there is no such file, or if the name is not the name of a regular file.
  [[nodiscard]] std::optional<Status> status(const std::string& name) const;

  // These calls return ENOENT without such a file. They return EACCES for a directory of a user who may not
  // write the archive, and if a link or a file has the directory's name.
  /// Makes a file, and the directory if needed. EEXIST: the name is taken. The file gets the archive's mode,
  /// so that all users who may write the archive can finish the file. Users who may only read the archive may
  /// read the file only if `mode` allows it: the bits that the umask of the file's maker has left.
  Result<std::unique_ptr<File>> create(const std::string& name, std::uint32_t mode = 0666);
  /// EPERM: the file has another name elsewhere.
  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& name) const;
  /// @param replaces  true: may replace another file of the new name; false: EEXIST.
  Result<void> rename(const std::string& name, const std::string& new_name, bool replaces);
  Result<void> remove(const std::string& name);
  /// Removes an empty directory, which a killed process may leave.
  void tidy();
  /// Brings the names to stable storage.
  Result<void> sync() const;

 private:
  /// Opens the directory of the model. ESTALE: another directory has its path.
  [[nodiscard]] Result<OpenDirectory> opened_above() const;
  /// Opens the scratch directory. ENOENT: it does not exist.
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
  std::filesystem::path beside_;       // the archive's name; empty if it is not in the model's directory
  std::optional<FileIdentity> above_;  // of the model's directory
};

class Model;
/// Returns the scratch directory of a model.
ScratchDirectory scratch_directory_of(const Model& model);
/// Returns the names of a model's scratch files. Empty if they can't be listed.
std::vector<std::string> scratch_files_of(const Model& model);

}  // namespace stfs
