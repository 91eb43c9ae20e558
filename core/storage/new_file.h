// A file that gets its name only when it is whole and on stable storage.
//
// The file grows in its directory under a temporary name, and finish() renames it. A writer that is destroyed
// earlier leaves nothing.
//
// Other users may write the directory, and replace the temporary file by another one. So all access uses the
// descriptor, and the file that is renamed, or removed, must be the one that was made (ESTALE). Between that
// check and the rename, such a user can still replace it, but could rename that file without us just as well.
// A user who may write a parent directory may replace the directory: create() opens the directory once, and
// reaches the file through it until the end. A caller with many files opens the directory first
// (open_directory.h).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/storage/file.h"
#include "core/storage/permissions.h"

namespace stfs {

/// Returns true if NewFile::create() makes temporary files with such names.
bool is_temporary_file_name(std::string_view file_name);

/// Returns a name that is_temporary_file_name() accepts, with 64 random bits. Other users can't make a file
/// of that name first.
std::string new_temporary_file_name();

class NewFile {
 public:
  /// EEXIST if the path exists and `replace` is false. Fails if the file to be replaced is not a regular
  /// file.
  /// @param mode  the permissions of a file that replaces none, before the umask. The group's bits are for
  ///              the group that the file gets, which the directory may choose. If the group may do more than
  ///              others, a default list of the directory gives no user more than each of its entries gives.
  ///              A file that replaces another one never allows more (copy_file_attributes()).
  /// @param storage  must outlive it.
  static Result<NewFile> create(const std::filesystem::path& path, bool replace, const NewFileMode& mode = {},
                                Storage& storage = system_storage());
  /// Does the same for a file that is not made from private files: a default list keeps its effect, and a
  /// file that is replaced gives its mode. A killed process leaves the file `temporary`, which is in the same
  /// directory. A later call with the same name removes it.
  /// @param most  for a file that is made from private files: limits `mode`, and the mode of a file that is
  ///              replaced, as `mode` of create() does.
  static Result<NewFile> create_as(const std::filesystem::path& temporary, const std::filesystem::path& path,
                                   mode_t mode = 0666, Storage& storage = system_storage(),
                                   const NewFileMode& most = {});

  NewFile(NewFile&&) noexcept = default;
  NewFile& operator=(NewFile&&) = delete;
  /// Removes the temporary file, unless finish() has succeeded.
  ~NewFile();

  /// Preallocates so many bytes in all: a full disk fails here, if the file system reports it. finish() frees
  /// the part that was not used.
  Result<void> reserve(std::uint64_t size_bytes);
  /// Appends bytes. A failure of any call removes the temporary file and makes this object unusable.
  Result<void> append(std::span<const std::byte> bytes);
  /// Replaces bytes that were appended before, from `offset` on: for a header that is known last.
  Result<void> overwrite(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Removes the bytes after the first size_bytes.
  Result<void> cut(std::uint64_t size_bytes);

  /// Gives the file the mode, owner and attributes of the file that it replaces, but no right to execute.
  /// Syncs and closes it: only its name is missing. For a caller that writes many files and names them
  /// together.
  /// @param give_access  runs instead if nothing is copied from another file: because the file replaces none,
  ///                     or because the other file may_be_planted() (file_attributes.h).
  Result<void> settle(const std::function<Result<void>(File&)>& give_access = {});
  /// Settles the file if that was not done, renames it, and syncs the directory. A symbolic link at the path
  /// is itself replaced; its target stays as it is.
  /// @param durability  Process: nothing is synced. After a loss of power the file can be the old one, the
  ///                    new one, or empty.
  Result<void> finish(Durability durability = Durability::Power);
  /// Renames a settled file to another path in the same directory, and does not sync the directory: for a
  /// caller that names many files and then syncs it once. A file at the path is replaced. ESTALE: another
  /// user has exchanged the temporary file.
  Result<void> finish_unsynced(const std::filesystem::path& path);

  /// Removes the temporary file.
  void discard();
  /// Returns true if bytes can be appended.
  [[nodiscard]] bool is_open() const { return static_cast<bool>(file_); }

 private:
  NewFile(std::shared_ptr<Storage> storage, std::filesystem::path path)
      : storage_(std::move(storage)), path_(std::move(path)) {}
  Result<void> hold(std::unique_ptr<File> file, std::filesystem::path temporary);
  Result<void> gather(std::span<const std::byte> bytes);
  Result<void> write_gathered();
  Result<void> write(std::span<const std::byte> bytes);
  Result<void> complete(Durability durability, const std::function<Result<void>(File&)>& give_access = {});
  Result<void> take_attributes();
  Result<void> rename(const std::filesystem::path& path);
  /// ESTALE unless the temporary name leads to the file that was made.
  [[nodiscard]] Result<void> check_own() const;
  /// Returns the same result. A failure names the file's path instead of the temporary one.
  Result<void> told(Result<void> done, std::string_view action) const;

  /// Removes the file when it is destroyed, but not another file that has its name.
  struct Remove {
    Storage* storage;
    FileIdentity made;
    void operator()(std::filesystem::path* path) const;
  };
  std::shared_ptr<Storage> storage_;  // may own the open directory
  std::filesystem::path path_;
  std::unique_ptr<std::filesystem::path, Remove> temporary_;  // null: there is no temporary file
  std::unique_ptr<File> file_;                                // open until settle() or discard()
  std::vector<std::byte> gathered_;                           // to be appended to the written bytes
  std::uint64_t written_bytes_ = 0;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t appended_bytes_ = 0;
  bool replace_ = false;
  NewFileMode mode_;
};

}  // namespace stfs
