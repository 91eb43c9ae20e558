// The root of a mounted directory of models, apart from the models: the other entries of the source
// directory, as links (fs/read/source_links.h), and the files that programs make there
// (fs/write/made_file.h). Forest shows the models themselves (forest.h), and calls this class for the rest.
//
// Programs make files and directories in the source directory, under the same names:
//
//   NAME.safetensors   an archive. It has no name in the source directory before a close finds it whole.
//   any other name     a plain file, for config.json and for temporary files. It has its name at once, and
//                      its bytes as they come. When it is renamed to NAME.safetensors it must be an archive.
//   a directory        After its making it is a link as well, so what programs do in it is done by the file
//                      system of the source, not by this mount.
//
// Inode numbers lie where those of PretrainedDirectory lie, in the space of number 0, which no model of a
// directory has. The kernel caches neither names nor attributes of these numbers.
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

#include "core/base/durability.h"
#include "core/base/error.h"
#include "fs/read/pretrained_directory.h"
#include "fs/read/source_links.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_space.h"
#include "fs/write/made_file.h"
#include "fs/write/open_file.h"
#include "fs/write/transaction_directory.h"

namespace stfs {

/// Any thread may call. Each call waits for the disk of the source directory, except attributes() of a file,
/// file_type(), note_lookup() and forget(). No other lock is taken while its mutex is held.
class SourceDirectory {
 public:
  using Stat = struct stat;  // `stat` alone is the function

  struct Options {
    bool allows_new = true;  // programs may make, rename and delete files
    Durability durability = Durability::Power;
    std::optional<uid_t> uid{};  // shown in place of the directory's own; so is gid
    std::optional<gid_t> gid{};
    mode_t umask = 0;
    bool is_shared = false;  // other users may enter the mount
  };
  /// Opens the directory.
  /// @param path  absolute.
  SourceDirectory(const std::filesystem::path& path, const Options& options);
  /// `is_model` says whether a file is shown as a model. Set before the first call.
  void leave_out(std::function<bool(std::string_view file_name)> is_model) {
    is_model_ = std::move(is_model);
  }

  /// Whether a file of that name is an archive: NAME.safetensors.
  static bool is_archive_name(std::string_view file_name);
  /// Not for the root.
  static bool owns(Ino ino) { return InodeSpace::number_of(ino) == 0 && PretrainedDirectory::owns(ino); }
  [[nodiscard]] const std::filesystem::path& path() const { return links_.directory(); }
  [[nodiscard]] bool is_shared() const { return options_.is_shared; }
  /// The directory's own status, with the owner and the mode that the mount shows. Nothing: it cannot be
  /// read.
  [[nodiscard]] std::optional<Stat> status() const;

  // ENOENT if a name or a number does not exist.
  /// @param with_links  false: only archives that are arriving.
  [[nodiscard]] Result<Ino> find(std::string_view name, bool with_links = true) const;
  [[nodiscard]] Result<Stat> attributes(Ino ino) const;
  /// S_IFDIR, S_IFLNK or S_IFREG.
  [[nodiscard]] mode_t file_type(Ino ino) const;
  [[nodiscard]] Result<std::string> read_link(Ino ino) const;
  /// Lists links, and archives that have no name yet; no hidden files. Positions count from 0.
  void list(std::uint64_t position, const Directory::VisitEntry& visit, bool with_links) const;
  void note_lookup(Ino ino) const;
  void forget(Ino ino, std::uint64_t lookups) const;

  // What changes the directory. EPERM without allows_new, and for names that this project uses itself.
  struct Created {
    Stat status{};
    OpenFile* file = nullptr;
  };
  /// @param mode   the permissions, after the umask of the program.
  /// @param maker  the file belongs to this user. EACCES if the mount has no right to give it away.
  Result<Created> create(std::string_view name, int flags, mode_t mode, Maker maker, pid_t opener);
  Result<Stat> make_directory(std::string_view name, mode_t mode, Maker maker);
  /// Removes a file, or an empty directory: the kernel takes its link for a file.
  Result<void> remove(std::string_view name);
  /// @param flags  of renameat2(2): RENAME_NOREPLACE.
  Result<void> rename(std::string_view name, std::string_view new_name, unsigned flags);
  /// What chmod(2), chown(2) and utimensat(2) change of a file.
  struct Change {
    std::optional<mode_t> permissions;
    std::optional<uid_t> uid;
    std::optional<gid_t> gid;
    std::optional<struct timespec> mtime;
  };
  Result<void> change(std::string_view name, const Change& change);
  /// ENODATA unless the file is a whole archive. Syncs it as the mount's durability says. Programs that have
  /// it open can't write to it any more.
  Result<void> settle_archive(std::string_view name);
  /// Makes the names of the directory durable as the mount's durability says.
  Result<void> sync_names();

  // Files. The owner of an OpenFile is this object, until release().
  /// Null for a reader. EBUSY for a writer: the program that makes the file is its only one.
  Result<OpenFile*> open(Ino ino, int flags);
  /// The file of a number, or null.
  [[nodiscard]] std::shared_ptr<MadeFile> file(Ino ino) const;
  /// The archive of that name that has no name yet in the source directory, or null.
  [[nodiscard]] std::shared_ptr<MadeFile> arriving(std::string_view name) const;
  /// Gives an archive its name in the source directory. The caller has its turn. It still counts as arriving.
  Result<void> give_name(MadeFile& made);
  /// Call when the archive is shown as a model, or was dropped.
  void end_arriving(const MadeFile& made);
  /// Gives an archive that is arriving another name. @param replaces  whatever has the name then is replaced.
  void rename_arriving(std::string_view name, std::string_view new_name, bool replaces);
  /// Ends a descriptor. @return the file, if it was its last descriptor.
  std::shared_ptr<MadeFile> release(OpenFile* file);

 private:
  static constexpr Ino kLinks = PretrainedDirectory::kEntries;
  static constexpr Ino kMadeDirectories = kLinks + (Ino{1} << 37U);  // by the number of their link
  static constexpr Ino kFiles = kLinks + (Ino{1} << 38U);
  static constexpr Ino kEnd = kLinks + (Ino{1} << 38U) + (Ino{1} << 37U);
  static_assert(kEnd < PretrainedDirectory::kEnd);

  struct Entry {
    std::shared_ptr<MadeFile> made;
    std::uint64_t lookups = 0;
    unsigned descriptors = 0;
  };

  [[nodiscard]] Result<void> check_name(std::string_view name) const;
  Result<std::unique_ptr<File>> make_file(const std::string& name, bool is_archive, mode_t mode, Maker maker);
  Result<void> give_to(int descriptor, mode_t mode, Maker maker) const;
  /// Shows the owner and mode that the mount shows.
  void disguise(Stat& st) const;
  OpenFile* add_open(Ino ino, int flags, pid_t opener);
  /// Forgets a file that nobody knows any more. The caller holds the mutex.
  void drop_unused(std::map<Ino, Entry>::iterator entry) const;

  const Options options_;
  std::function<bool(std::string_view file_name)> is_model_ = [](std::string_view) { return false; };
  const SourceLinks links_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::map<Ino, Entry> files_;
  std::map<std::string, Ino, std::less<>> arriving_;  // by name
  std::map<OpenFile*, std::unique_ptr<OpenFile>> open_;
  Ino next_ = kFiles;
};

}  // namespace stfs
