// A file that gets its name only when it is whole and on stable storage.
//
// It grows beside its path under a temporary name, and finish() renames it. A writer that is destroyed
// earlier leaves nothing.
//
// Other users may write the directory and exchange the temporary file for another one. So all access is given
// through the descriptor, and the file that is renamed, or removed, must be the one that was made (ESTALE).
// Between that check and the rename, such a user can still exchange it, and could as well rename that file
// without us. A user who may write a directory above may exchange the directory: a caller with many files
// opens it first, and names them through the open directory (open_directory.h).
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

/// Whether a name is one of those that NewFile::create() gives to temporary files.
bool is_temporary_file_name(std::string_view file_name);

/// A name that is_temporary_file_name() accepts, and that no other call of this process returns. Files of
/// other processes may have it.
std::string new_temporary_file_name();

class NewFile {
 public:
  /// EEXIST if the path exists and `replace` is false. Fails if the file to be replaced is not a regular
  /// file.
  /// @param mode  the permissions of a file that replaces none, before the umask. The file's group counts,
  ///              which the directory may give. If the group may do more than others, a default list of the
  ///              directory gives nobody more than each of its entries.
  ///              Where others may write the directory, a file that is replaced gives no more than this mode.
  /// @param storage  must outlive it.
  static Result<NewFile> create(const std::filesystem::path& path, bool replace, const NewFileMode& mode = {},
                                Storage& storage = system_storage());
  /// The same, to replace a file, or to make one, whose mode is not that of private files that it is made
  /// from: so a default list keeps its effect, and a file that is replaced gives its mode. A killed process
  /// leaves the file `temporary`, in the same directory: whoever repeats its work removes it, since this
  /// call does.
  static Result<NewFile> create_as(const std::filesystem::path& temporary, const std::filesystem::path& path,
                                   mode_t mode = 0666, Storage& storage = system_storage());

  NewFile(NewFile&&) noexcept = default;
  NewFile& operator=(NewFile&&) = delete;
  /// Removes the temporary file, unless finish() has succeeded.
  ~NewFile();

  /// Preallocates so many bytes in all: a full disk fails here, if the file system can tell. finish() frees
  /// what was not appended.
  Result<void> reserve(std::uint64_t size_bytes);
  /// Appends bytes. After a failure of any call the temporary file is gone, and this object is unusable.
  Result<void> append(std::span<const std::byte> bytes);
  /// Replaces bytes that were appended before, from `offset` on: for a header that is known last.
  Result<void> overwrite(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Takes back what was appended behind the first bytes.
  Result<void> cut(std::uint64_t size_bytes);

  /// Gives the file the mode, owner and attributes of the file that it replaces, but no right to execute.
  /// Syncs it and closes it: only its name is missing. For a caller that writes many files and names them
  /// together.
  /// @param give_access  runs instead if it takes nothing from another file: it replaces none, or one that
  /// may_be_planted() (file_attributes.h).
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
  /// Whether bytes can be appended.
  [[nodiscard]] bool is_open() const { return static_cast<bool>(file_); }

 private:
  NewFile(Storage& storage, std::filesystem::path path) : storage_(&storage), path_(std::move(path)) {}
  Result<void> hold(std::unique_ptr<File> file, std::filesystem::path temporary);
  Result<void> gather(std::span<const std::byte> bytes);
  Result<void> write_gathered();
  Result<void> write(std::span<const std::byte> bytes);
  Result<void> complete(Durability durability, const std::function<Result<void>(File&)>& give_access = {});
  Result<void> take_attributes();
  Result<void> rename(const std::filesystem::path& path);
  /// ESTALE unless the temporary name is that of the file that was made.
  [[nodiscard]] Result<void> check_own() const;
  /// The same result; a failure names the file's path instead of the temporary one.
  Result<void> told(Result<void> done, std::string_view action) const;

  /// Removes the file when it is destroyed, but not another one that has its name.
  struct Remove {
    Storage* storage;
    FileIdentity made;
    void operator()(std::filesystem::path* path) const;
  };
  Storage* storage_;
  std::filesystem::path path_;
  std::unique_ptr<std::filesystem::path, Remove> temporary_;  // null: there is none any more
  std::unique_ptr<File> file_;                                // open until settle() or discard()
  std::vector<std::byte> gathered_;                           // to be appended behind the written bytes
  std::uint64_t written_bytes_ = 0;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t appended_bytes_ = 0;
  bool replace_ = false;
  NewFileMode mode_;
};

}  // namespace stfs
