// The root of a mounted directory of models, apart from the models: the other entries of the source
// directory (fs/read/source_tree.h, served_files.h), and the archives that programs make there
// (fs/write/made_file.h). Forest shows the models themselves (forest.h), and calls this class for the rest.
//
// Programs make files and directories in the source directory, under the same names:
//
//   NAME.safetensors   an archive. It has no name in the source directory before a close finds it whole.
//   any other name     a file, for config.json and for temporary files. It has its name at once, and its
//                      bytes as they come. When it is renamed to NAME.safetensors it must be an archive.
//   a directory        What lies in it are files alone: archives there are no models.
//
// Inode numbers lie where those of SourceTree lie, in the space of number 0, which no model of a directory
// has. The kernel caches neither names nor attributes of these numbers.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "fs/base/user_counts.h"
#include "fs/model/served_files.h"
#include "fs/read/source_tree.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_space.h"
#include "fs/write/made_file.h"
#include "fs/write/open_file.h"
#include "fs/write/transaction_directory.h"

namespace stfs {

/// Any thread may call. Each call waits for the disk of the source directory, except attributes() of an
/// archive that arrives, file_type(), note_lookup() and forget(). No other lock is taken while its mutex is
/// held.
class SourceDirectory {
 public:
  using Stat = struct stat;  // `stat` alone is the function

  /// Opens the directory.
  /// @param path  absolute.
  SourceDirectory(const std::filesystem::path& path, const FilesystemOptions& options);
  /// `is_model` says whether a file is shown as a model. Set before the first call.
  void leave_out(std::function<bool(std::string_view file_name)> is_model) {
    is_model_ = std::move(is_model);
  }

  /// Whether a file of that name is an archive: NAME.safetensors.
  static bool is_archive_name(std::string_view file_name);
  /// Whether a number is one of an archive that a program makes.
  static bool is_made(Ino ino) { return InodeSpace::number_of(ino) == 0 && ino >= kMade && ino < kEnd; }
  /// Whether a number is one of another entry. Not for the root.
  static bool serves(Ino ino) {
    return InodeSpace::number_of(ino) == 0 && SourceTree::owns(ino) && !is_made(ino);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool is_shared() const { return options_.is_shared; }
  /// The directory's own status, with the owner and the mode that the mount shows. Nothing: it cannot be
  /// read. EMFILE, ENFILE: there are no descriptors.
  [[nodiscard]] Result<std::optional<Stat>> status() const;

  /// A served file or directory, or the root.
  [[nodiscard]] Node node(Ino ino) const {
    return tree_.node(ino == kRootIno ? SourceTree::kDirectory : ino);
  }
  [[nodiscard]] ServedFiles& files() { return files_; }
  /// SourceTree::is_changed().
  [[nodiscard]] bool is_changed(Ino ino) const { return tree_.is_changed(ino); }
  /// The owner of the file or link of that name; nothing if there is none.
  [[nodiscard]] std::optional<uid_t> owner_of(const std::string& name) const;
  /// The path of an entry, for messages.
  [[nodiscard]] std::filesystem::path path_of(Ino ino) const;

  // ENOENT if a name or a number does not exist.
  /// @param shows_entries  false: of the root's entries only archives that are arriving.
  [[nodiscard]] Result<Ino> find(Ino directory, std::string_view name, bool shows_entries = true);
  [[nodiscard]] Result<Stat> attributes(Ino ino) const;
  /// S_IFDIR or S_IFREG.
  [[nodiscard]] mode_t file_type(Ino ino) const;
  /// Lists the entries of the root, and archives that have no name yet. Positions count from 0.
  void list_root(std::uint64_t position, const Directory::VisitEntry& visit, bool shows_entries) const;
  /// Lists another directory, with `.` and `..`.
  void list(Ino directory, std::uint64_t position, const Directory::VisitEntry& visit) const;
  void note_lookup(Ino ino) const;
  void forget(Ino ino, std::uint64_t lookups) const;

  // What changes the root. EROFS; EPERM with edit=off, and for names that this project uses itself. Whatever
  // concerns no archive goes to files().
  struct Created {
    Stat status{};
    OpenFile* file = nullptr;  // of an archive
  };
  /// Begins an archive.
  /// @param mode   the permissions, after the umask of the program.
  /// @param maker  the file belongs to this user. EACCES if the mount has no right to give it away.
  /// EDQUOT if the user has too many (take_descriptor()).
  Result<Created> create(std::string_view name, int flags, mode_t mode, Maker maker, pid_t opener);
  /// Removes a model's archive. Its scratch files are the user's, and stay: the log says so.
  Result<void> remove(std::string_view name);
  /// Renames an archive, or a file to that of a model. Scratch files of the model go with it.
  /// @param flags  of renameat2(2): RENAME_NOREPLACE.
  Result<void> rename(std::string_view name, std::string_view new_name, unsigned flags);
  /// Changes attributes of a model's archive. ESTALE if the name is one of another file now: a link may lead
  /// to any file.
  Result<void> change(std::string_view name, const FileIdentity& archive, const ServedFiles::Change& change);
  /// ENODATA unless the file is a whole archive. Syncs it as the mount's durability says. Programs that have
  /// it open can't write to it any more.
  Result<void> settle_archive(std::string_view name);
  /// Makes the names of the directory durable as the mount's durability says.
  Result<void> sync_names();

  // Archives that programs make. The owner of an OpenFile is this object, until release().
  /// Null for a reader. EBUSY for a writer: the program that makes the file is its only one.
  Result<OpenFile*> open(Ino ino, int flags);
  /// The file of a number, or null.
  [[nodiscard]] std::shared_ptr<MadeFile> file(Ino ino) const;
  /// The archive of that name that has no name yet in the source directory, or null.
  [[nodiscard]] std::shared_ptr<MadeFile> arriving(std::string_view name) const;
  /// Gives an archive its name in the source directory. The caller has its turn. It still counts as arriving.
  /// EEXIST, and its bytes are dropped: another user's file has got the name since the save began, and the
  /// sticky bit of the directory keeps it.
  Result<void> give_name(MadeFile& made);
  /// Call when the archive is shown as a model, or was dropped.
  void end_arriving(const MadeFile& made);
  /// Gives an archive that is arriving another name. @param replacer  MadeFile::move_to().
  void rename_arriving(std::string_view name, std::string_view new_name, std::optional<uid_t> replacer);
  /// Ends a descriptor. @return the file, if it was its last descriptor.
  std::shared_ptr<MadeFile> release(OpenFile* file);

 private:
  static constexpr Ino kMade = SourceTree::kEntries + (Ino{1} << 38U);
  static constexpr Ino kEnd = kMade + (Ino{1} << 37U);
  static_assert(kEnd < SourceTree::kEnd);

  struct Entry {
    std::shared_ptr<MadeFile> made;
    UserCounts::Share share;  // of its descriptor
    std::uint64_t lookups = 0;
    unsigned descriptors = 0;
  };

  [[nodiscard]] Result<void> check_name(std::string_view name) const;
  /// Shows the owner and mode that the mount shows.
  void disguise(Stat& st) const;
  OpenFile* add_open(Ino ino, int flags, pid_t opener);
  void move_scratch_files(std::string_view name, std::string_view new_name) const;
  /// Forgets a file that nobody knows any more. The caller holds the mutex.
  void drop_unused(std::map<Ino, Entry>::iterator entry) const;

  /// The descriptor of the directory for calls that end in `at`.
  [[nodiscard]] int descriptor() const { return tree_.files().top().parent.get(); }
  /// A path that leads to the open directory. Another user may have given path() to another one.
  [[nodiscard]] std::filesystem::path opened_path() const;
  /// check_sticky_bit() of the user that requests this.
  [[nodiscard]] Result<void> check_sticky(std::string_view name) const;

  const std::filesystem::path path_;
  const FilesystemOptions options_;
  std::function<bool(std::string_view file_name)> is_model_ = [](std::string_view) { return false; };
  SourceTree tree_;
  ServedFiles files_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::map<Ino, Entry> made_;
  std::map<std::string, Ino, std::less<>> arriving_;  // by name
  std::map<OpenFile*, std::unique_ptr<OpenFile>> open_;
  Ino next_ = kMade;
};

}  // namespace stfs
