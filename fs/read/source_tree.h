// Numbers the entries of a source directory, with those of the private directories of deltas that lie over it
// (source_files.h): `.safetensors/pretrained/` shows them (pretrained_directory.h), and so does the root of a
// directory of models (fs/model/source_directory.h).
//
// These entries are left out, besides those at the top that the owner of this object leaves out:
//
//   - journals; temporary files of this project can be looked up, and are not listed
//   - directories on which something is mounted: the mount itself may be one of them
//   - what is neither a file nor a directory, and links that are not followed (source_entry.h)
//
// Inode numbers lie between those of the tree of tensors and those of the views. A number stands for a path
// and the file that has the path: a file that replaces another one has another number, and readers of the old
// one go on with it. So does a number of a directory, except with a delta, whose directories are merged of
// several. A number lasts while the kernel knows it. The kernel must not cache names and
// attributes, because nobody tells when the source directory changes. It caches bytes. is_changed() tells
// when it must forget them.
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
  /// @param deltas       absolute paths, the one on top last.
  /// @param is_left_out  for names at the top.
  SourceTree(const std::filesystem::path& source, const std::vector<std::filesystem::path>& deltas,
             SourceFiles::IsLeftOut is_left_out)
      : files_(source, deltas, std::move(is_left_out)) {}

  static bool owns(Ino ino) { return ino >= kDirectory && ino < kEnd; }
  [[nodiscard]] Node node(Ino ino) const override;
  /// ENOENT; the errors of SourceFiles::find().
  Result<Ino> find(Ino directory, std::string_view name) override;
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;
  /// Lists the entries without `.` and `..`, from a position on that is 0 or that visit got. A listing in
  /// several calls shows no entry twice, and each entry that exists during all of them.
  void list_names(Ino directory, std::uint64_t position, const VisitEntry& visit) const;
  /// The path of an entry. ENOENT: no such number. ESTALE: the file was deleted in the mount.
  [[nodiscard]] Result<std::string> path_of(Ino ino) const;

  /// What a change compares with. None of a directory that stands for a path alone.
  [[nodiscard]] EntryIdentity identity_of(Ino ino) const;

  struct Shown {
    struct stat status {};
    Permissions permissions{};
    /// It lies in the private directory on top, and no mount has copied it there.
    bool is_private_own = false;
  };
  /// ESTALE: another file has the path now, and nobody has read this one.
  [[nodiscard]] Result<Shown> attributes(Ino ino) const;
  /// A descriptor of the file for reading. ESTALE as attributes().
  [[nodiscard]] Result<std::shared_ptr<const UniqueFd>> reader(Ino ino) const;
  [[nodiscard]] const SourceFiles& files() const { return files_; }

  void note_lookup(Ino ino) const;
  void forget(Ino ino, std::uint64_t lookups) const;
  /// Whether attributes() has found another size or time than the time before. Then bytes that the kernel has
  /// cached may be old.
  [[nodiscard]] bool is_changed(Ino ino) const;

  // What a change in the mount makes of the numbers:
  /// The file of this number has become another file of the same path.
  void note_copied(Ino ino, const EntryIdentity& copy) const;
  /// The number of a file that a request has just made.
  [[nodiscard]] Ino note_made(const std::string& path, const EntryIdentity& made) const;
  /// Call before a file gets another path or is deleted: its readers go on.
  void keep_open(const std::string& path) const;
  /// The path names no file any more.
  void note_removed(const std::string& path) const;
  /// Call for files and directories; what had the new path before has none now.
  void note_renamed(const std::string& path, const std::string& new_path) const;

  /// Visits all entries that the kernel may have cached.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;

 protected:
  static constexpr std::uint64_t kFixedEntries = 3;  // positions before those of names

 private:
  static constexpr std::size_t kMostUnknown = 1 << 16;  // that listings gave and the kernel may not know

  /// A file or directory by its path. With a delta, a directory has no identity.
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
    std::uint64_t opened_at = 0;  // of the reader; a key of readers_ unless is_gone
    std::shared_ptr<const UniqueFd> reader{};
    UserCounts::Share share{};      // of a reader that stays open although the file is gone
    struct timespec changed_at {};  // as last told, with the size
    off_t size_bytes = -1;
    bool is_changed = false;
  };
  using Entries = std::map<Ino, Entry>;
  /// The names of a directory, in the order of their positions.
  using Names = std::vector<std::pair<std::uint64_t, std::string>>;

  /// The names for a listing. One that goes on gets those that its last call got, or newer ones.
  [[nodiscard]] Result<std::shared_ptr<const Names>> names_of(const std::string& path, bool goes_on) const;
  [[nodiscard]] Result<Ino> number_of(const std::string& path) const;
  [[nodiscard]] Result<Entry> entry(Ino ino) const;
  /// The entry's file, if it still has its path.
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
  mutable std::map<std::uint64_t, Ino> readers_ GUARDED_BY(mutex_);  // that may be closed, by opened_at
  mutable std::size_t drops_at_ GUARDED_BY(mutex_) = 2 * kMostUnknown;
  // The newest first.
  mutable std::deque<std::pair<std::string, std::shared_ptr<const Names>>> listed_ GUARDED_BY(mutex_);
};

}  // namespace stfs
