// Serves the files of a source directory: their attributes, bytes and changes. In a model the files are below
// `.safetensors/pretrained`. In the root of a directory of models they are beside the models, and no request
// changes them. A mount with a delta changes private copies, a read-only mount changes nothing (EROFS), and
// any other mount changes the files of the source directory.
//
// Bytes go to the file immediately. The mount has a file open for writing while a program has it open for
// writing, or during a change by its path. The open descriptor is charged to the user whose request opened
// the file.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "fs/base/user_counts.h"
#include "fs/model/mounted_model_options.h"
#include "fs/read/source_tree.h"
#include "fs/tree/bytes.h"
#include "fs/tree/directory.h"
#include "fs/write/source_changes.h"

namespace stfs {

/// Any thread may call. Each call waits for the disk. No other lock is taken while its mutex is held.
class ServedFiles {
 public:
  /// @param tree            must outlive this object, and so must the options.
  /// @param delta_permissions  the permissions of the delta on top; not called without a delta.
  ServedFiles(SourceTree& tree, const MountedModelOptions& options,
              std::function<Permissions()> delta_permissions)
      : tree_(tree),
        options_(options),
        delta_permissions_(std::move(delta_permissions)),
        changes_(tree.files(), options.commit.durability, options.uid) {}

  /// The attributes of a file or directory, with the number of the node.
  [[nodiscard]] Result<struct stat> attributes(const Node& node) const;
  /// Prepares an open(2) of the node. After an open for writing, the caller must call release().
  /// @param flags  of open(2); O_TRUNC is a resize() that follows.
  Result<void> open(const Node& node, int flags);
  /// Ends an open for writing, also an open by create().
  void release(const Node& node);
  [[nodiscard]] Result<Bytes> read(const Node& node, std::uint64_t offset, std::size_t size_bytes) const;
  /// @param flags  of the descriptor: O_APPEND, O_DSYNC.
  Result<void> write(const Node& node, std::span<const std::byte> from, std::uint64_t offset, int flags);
  Result<void> resize(const Node& node, std::uint64_t size_bytes);
  /// The changes that chmod(2), chown(2) and utimensat(2) make to a file.
  struct Change {
    std::optional<mode_t> permissions{};
    std::optional<uid_t> uid{};
    std::optional<gid_t> gid{};
    std::optional<struct timespec> mtime{};
  };
  /// EPERM for the source directory itself.
  Result<void> change(const Node& node, const Change& change);
  /// Call for a close of one of a descriptor's copies. Returns the result that the source's file system
  /// reports for the bytes.
  Result<void> close(const Node& node);
  Result<void> sync(const Node& node);

  // Names. EPERM for names that the mount does not show, and with edit=off.
  /// Makes a file, and opens it for writing. @return its number.
  Result<Ino> create(const Node& directory, std::string_view name, mode_t mode, const Maker& maker);
  Result<Ino> make_directory(const Node& directory, std::string_view name, mode_t mode, const Maker& maker);
  Result<void> remove(const Node& directory, std::string_view name);
  Result<void> remove_directory(const Node& directory, std::string_view name);
  /// @param flags  of renameat2(2).
  Result<void> rename(const Node& directory, std::string_view name, const Node& new_directory,
                      std::string_view new_name, unsigned flags);

 private:
  using Writer = std::shared_ptr<const UniqueFd>;
  struct OpenWriter {
    Writer file;
    UserCounts::Share share;  // of the user who has opened it; none for root and the mounting user
  };
  [[nodiscard]] Result<void> check_writable() const;
  /// The path of a name that a request may make, move or remove.
  [[nodiscard]] Result<SourceChanges::Name> name_in(const Node& directory, std::string_view name) const;
  /// EDQUOT if the user has too many files open for writing: each takes a descriptor of the mount.
  Result<UserCounts::Share> share_of(uid_t user);
  /// Opens a file for writing, and first copies the file if it needs a private copy.
  Result<Writer> writer(const Node& node, bool keeps_bytes = true);
  /// Closes what writer() has opened, if no program has the file open for writing.
  void end_unused(Ino ino);
  Result<OpenWriter> open_writer(const Node& node, bool keeps_bytes);
  /// EPERM unless the request's user owns the file itself. The kernel has only checked the owner that the
  /// mount shows. With a delta, this may be the delta's owner; with uid=, it is the user that the option
  /// names.
  [[nodiscard]] Result<void> check_owner(const struct stat& status) const;
  /// Returns a descriptor for a change of attributes.
  Result<Writer> changeable(const Node& node);
  [[nodiscard]] bool has_delta() const { return tree_.files().top().is_private(); }

  SourceTree& tree_;
  const MountedModelOptions& options_;
  const std::function<Permissions()> delta_permissions_;
  SourceChanges changes_;
  UserCounts open_files_{"files of the source directory open for writing", UserLimits().source_files};
  Mutex mutex_;
  std::map<Ino, unsigned> opens_ GUARDED_BY(mutex_);  // for writing; not 0
  std::map<Ino, OpenWriter> writers_ GUARDED_BY(mutex_);
  std::set<Ino> opening_ GUARDED_BY(mutex_);  // a thread is opening it, and then adds it to writers_
  Condition opened_;
};

}  // namespace stfs
