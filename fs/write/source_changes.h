// Changes of the files of a source directory. Without a delta they are changes of the source
// directory's own files. With a delta the source stays as it is: a file is copied into the private directory
// of the delta on top before its first change (read/source_files.h).
//
// A private directory is made with the first file that is changed, and is removed with its last. It and its
// files have the owner of the file, where the mount may give them away, and allow no other user more than the
// file of which they are copies. Whoever deletes a delta deletes its private directory.
//
// A change of names, and of a directory's attributes, gets the directory that the kernel asked about. ESTALE:
// its path leads to another directory now. With a delta there is nothing to compare: the change goes to the
// private directory of the path, whatever lies below.
//
// Nothing is written through a symbolic link. A file that is a link, as in the cache of a hub, is replaced by
// a copy of the file behind it. What lies behind a link to a directory can't be changed without a delta:
// EPERM.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "fs/read/source_files.h"
#include "fs/write/transaction_directory.h"

namespace stfs {

/// Any thread may call. Each call waits for the disk. Paths are those of SourceFiles.
class SourceChanges {
 public:
  /// @param files  must outlive it.
  /// @param shown_owner  whom the mount shows as the owner of all files; nothing: the owner.
  SourceChanges(const SourceFiles& files, Durability durability, std::optional<uid_t> shown_owner)
      : files_(files), durability_(durability), shown_owner_(shown_owner) {}

  /// A name that is made, moved or removed.
  struct Name {
    std::string path;
    EntryIdentity directory{};  // that holds it
  };
  /// A file that may be changed.
  struct Own {
    UniqueFd file;  // for reading and writing, or for writing alone where reading is not allowed
    EntryIdentity identity{};
    bool is_copy = false;  // it was made by this call
  };
  /// Opens the file, after it was copied where that is needed. ESTALE: another file has the path than `due`.
  /// @param keeps_bytes  false: a copy is empty, because the caller cuts the file.
  Result<Own> open(const std::string& path, const EntryIdentity& due, bool keeps_bytes);
  /// Makes an empty file. EEXIST, also if a link has the name that is not followed.
  Result<Own> create(const Name& name, mode_t mode, const Maker& maker);
  /// Opens a directory for a change of its attributes. With a delta it becomes one of the private directory.
  Result<UniqueFd> open_directory(const std::string& path, EntryIdentity due);
  Result<void> make_directory(const Name& name, mode_t mode, const Maker& maker);
  Result<void> remove(const Name& name);
  /// EPERM with a delta for a directory that a layer below has.
  Result<void> remove_directory(const Name& name);
  /// @param flags  RENAME_NOREPLACE. EXDEV with a delta for a directory that a layer below has.
  Result<void> rename(const Name& name, const Name& new_name, unsigned flags);

 private:
  /// A directory in the layer on top, and a name in it.
  struct Place {
    UniqueFd directory;
    std::string name;
  };
  Result<Place> place_of(const std::string& path);
  Result<Place> place_of(const Name& name);
  [[nodiscard]] Result<void> check_replaceable(const Place& place, const std::string& path) const;
  Result<UniqueFd> open_private_top();
  Result<UniqueFd> enter(UniqueFd directory, const std::string& name, const std::string& path);
  Result<Own> copy(const std::string& path, const SourceEntry& of, bool keeps_bytes);
  Result<void> give_as(int descriptor, const struct stat& of, const Permissions& allowed) const;
  /// Makes a link that says that the file of this name was removed.
  Result<void> hide(const Place& place) const;
  void remove_private_top_if_empty() const;
  [[nodiscard]] std::string shown(const std::string& path) const {
    return (files_.top().path / path).string();
  }

  const SourceFiles& files_;
  const Durability durability_;
  const std::optional<uid_t> shown_owner_;
};

}  // namespace stfs
