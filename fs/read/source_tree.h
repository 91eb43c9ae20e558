// Numbers the entries of a source directory, and of the private directories of deltas above it
// (source_files.h). `.safetensors/pretrained/` shows these entries (pretrained_directory.h), and the root
// of a directory of models shows them (fs/model/source_directory.h).
//
// These entries are left out, in addition to entries at the top that the owner of this object leaves out:
//
//   - journals; temporary files of this project can be looked up but are not listed
//   - directories on which a file system is mounted, because this may be the mount itself
//   - entries that are neither files nor directories, and links that are not followed (source_entry.h)
//
// The inode numbers are between the numbers of the tree of tensors and the numbers of the views. A number
// means a path and the file at this path. A file that replaces another file gets another number, and readers
// of the old file continue to read the old file. The number of a directory also means path and directory;
// with a delta it means only the path, because several directories are merged. A number lasts while the
// kernel knows it. The kernel must not cache names and attributes, because no event reports changes of the
// source directory. The kernel caches bytes; is_changed() is true when it must forget them.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <ctime>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/storage/permissions.h"
#include "fs/base/user_counts.h"
#include "fs/read/source_files.h"
#include "fs/read/views.h"
#include "fs/tree/directory.h"

namespace stfs {

/// Any thread may call. Calls wait for the disk of the source directory, except node(), note_lookup(),
/// forget(), is_changed() and visit_known().
class SourceTree : public Directory {
 public:
  /// The source directory itself.
  static constexpr Ino kDirectory = Ino{1} << 39U;
  static constexpr Ino kEntries = kDirectory + 1;
  static constexpr Ino kEnd = Views::kNpy;

  /// Opens the source directory.
  /// @param deltas       absolute paths, the delta on top last.
  /// @param is_left_out  for names in the top directory.
  SourceTree(const std::filesystem::path& source, const std::vector<std::filesystem::path>& deltas,
             SourceFiles::IsLeftOut is_left_out)
      : files_(source, deltas, std::move(is_left_out)) {}

  static bool owns(Ino ino) { return ino >= kDirectory && ino < kEnd; }
  [[nodiscard]] Node node(Ino ino) const override;
  /// ENOENT, or the errors of SourceFiles::find().
  Result<Ino> find(Ino directory, std::string_view name) override;
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;
  /// Lists the entries without `.` and `..`, from a position that is 0 or a position that visit got. A
  /// listing in several calls shows no entry twice, and shows each entry that exists during all of the calls.
  void list_names(Ino directory, std::uint64_t position, const VisitEntry& visit) const;
  /// The path of an entry. ENOENT if the number does not exist. ESTALE if the file was deleted in the mount.
  [[nodiscard]] Result<std::string> path_of(Ino ino) const;

  /// The identity that a change of the entry compares with. Empty for a directory whose number means only a
  /// path.
  [[nodiscard]] EntryIdentity identity_of(Ino ino) const;

  struct Shown {
    struct stat status {};
    Permissions permissions{};
    /// The file is in the private directory on top, and no mount has copied it there.
    bool is_private_own = false;
  };
  /// ESTALE: another file has the path now, and the old file is not open.
  [[nodiscard]] Result<Shown> attributes(Ino ino) const;
  /// Returns a descriptor of the file for reading. ESTALE as in attributes().
  [[nodiscard]] Result<std::shared_ptr<const UniqueFd>> reader(Ino ino) const;
  [[nodiscard]] const SourceFiles& files() const { return files_; }

  void note_lookup(Ino ino) const;
  void forget(Ino ino, std::uint64_t lookups) const;
  /// Returns true if attributes() has found a new size or time since the last call. Then bytes that the
  /// kernel has cached may be stale.
  [[nodiscard]] bool is_changed(Ino ino) const;

  // How changes in the mount affect the numbers:
  /// The file of this number was replaced by a copy at the same path.
  void note_copied(Ino ino, const EntryIdentity& copy) const;
  /// The number of a file that a request has just made.
  [[nodiscard]] Ino note_made(const std::string& path, const EntryIdentity& made) const;
  /// Call before a file is renamed or deleted, so that its readers can continue.
  void keep_open(const std::string& path) const;
  /// Notes that the path names no file any more.
  void note_removed(const std::string& path) const;
  /// Notes a rename of a file or directory. A file that had the new path has no path any more.
  void note_renamed(const std::string& path, const std::string& new_path) const;

  /// Visits all entries that the kernel may have cached.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;

 protected:
  static constexpr std::uint64_t kFixedEntries = 3;  // positions before the positions of names

 private:
  static constexpr std::size_t kMostUnknown = 1 << 16;  // numbers of listings that the kernel may not know

  /// Identifies a file or directory by its path and identity. With a delta, a directory has no identity.
  struct Key {
    std::string path;
    EntryIdentity identity{};
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Entry {
    Key key{};
    bool is_directory = false;
    bool is_gone = false;  // deleted or replaced in the mount
    std::uint64_t lookups = 0;
    std::uint64_t used_at = 0;
    std::uint64_t opened_at = 0;  // when the reader was opened; a key of readers_ unless is_gone
    std::shared_ptr<const UniqueFd> reader{};
    UserCounts::Share share{};      // of a reader that stays open although the file has no path
    struct timespec changed_at {};  // as in the last reply, with the size
    off_t size_bytes = -1;
    bool is_changed = false;
  };
  using Entries = std::map<Ino, Entry>;
  /// The names of a directory, in the order of their positions.
  using Names = std::vector<std::pair<std::uint64_t, std::string>>;

  /// Returns the names for a listing. A listing that continues gets the names of its last call, or newer
  /// names.
  [[nodiscard]] Result<std::shared_ptr<const Names>> names_of(const std::string& path, bool goes_on) const;
  [[nodiscard]] Result<Ino> number_of(const std::string& path) const;
  [[nodiscard]] Result<Entry> entry(Ino ino) const;
  /// Finds the entry's file, if the file still has its path.
  [[nodiscard]] Result<SourceFiles::Found> look(const Entry& entry) const;
  void note_told(Ino ino, const struct stat& status) const;
  [[nodiscard]] Key key_of(const std::string& path, const SourceEntry& entry) const;
  Ino number(Key key, bool is_directory) const REQUIRES(mutex_);
  void keep(Ino ino, Entry& entry, std::shared_ptr<const UniqueFd> reader) const REQUIRES(mutex_);
  void drop_reader(Entry& entry) const REQUIRES(mutex_);
  void lose_path(Entries::iterator entry) const REQUIRES(mutex_);
  void drop_old() const REQUIRES(mutex_);

  const SourceFiles files_;

  mutable UserCounts gone_files_{"deleted files open", UserLimits().source_files};
  mutable Mutex mutex_;
  mutable Entries entries_ GUARDED_BY(mutex_);
  mutable std::map<Key, Ino> by_key_ GUARDED_BY(mutex_);
  mutable Ino next_ GUARDED_BY(mutex_) = kEntries;
  mutable std::uint64_t uses_ GUARDED_BY(mutex_) = 0;
  mutable std::map<std::uint64_t, Ino> readers_ GUARDED_BY(mutex_);  // may be closed; by opened_at
  mutable std::size_t drops_at_ GUARDED_BY(mutex_) = 2 * kMostUnknown;
  // The newest listing first.
  mutable std::deque<std::pair<std::string, std::shared_ptr<const Names>>> listed_ GUARDED_BY(mutex_);
};

}  // namespace stfs
