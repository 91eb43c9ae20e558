// Changes files of a source directory. Without a delta the source directory's own files are changed. With a
// delta the source directory stays unchanged: a file is copied into the private directory of the delta on top
// before its first change (read/source_files.h).
//
// A private directory is made with the first file that is changed, and is removed with its last file. The
// private directory and its files have the owner of the source file, if the mount may change owners. They
// give no other user more rights than the copied file does. A user who deletes a delta must delete its
// private directory.
//
// A change of names, or of a directory's attributes, gets the identity of the directory that the kernel asked
// about. ESTALE if the path leads to another directory now. With a delta no identity is compared: the change
// is made in the private directory of the path, even if the lower directories have changed.
//
// No bytes are written through a symbolic link. A file that is a link, as in the cache of a hub, is replaced
// by a copy of the file that the link leads to. A file behind a link to a directory can't be changed without
// a delta (EPERM).
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

/// Any thread may call. Each call waits for the disk. Paths have the form that SourceFiles uses.
class SourceChanges {
 public:
  /// @param files  must outlive this object.
  /// @param shown_owner  the user whom the mount shows as the owner of all files. Nothing: the mount shows
  ///                     the owner.
  SourceChanges(const SourceFiles& files, Durability durability, std::optional<uid_t> shown_owner)
      : files_(files), durability_(durability), shown_owner_(shown_owner) {}

  /// A name that a request makes, moves or removes.
  struct Name {
    std::string path;
    EntryIdentity directory{};  // the directory that contains the name
  };
  /// A file that may be changed.
  struct Own {
    UniqueFd file;  // for reading and writing; for writing only, if the file may not be read
    EntryIdentity identity{};
    bool is_copy = false;  // this call has made it
  };
  /// Opens the file, and first copies it if it needs a private copy. ESTALE if another file than `due` has
  /// the path.
  /// @param keeps_bytes  false: a copy is empty, because the caller truncates the file.
  Result<Own> open(const std::string& path, const EntryIdentity& due, bool keeps_bytes);
  /// Makes an empty file. EEXIST also if the name is a link that is not followed.
  Result<Own> create(const Name& name, mode_t mode, const Maker& maker);
  /// Opens a directory for a change of its attributes. With a delta, makes it in the private directory.
  Result<UniqueFd> open_directory(const std::string& path, EntryIdentity due);
  Result<void> make_directory(const Name& name, mode_t mode, const Maker& maker);
  Result<void> remove(const Name& name);
  /// EPERM with a delta for a directory that a lower layer has.
  Result<void> remove_directory(const Name& name);
  /// @param flags  RENAME_NOREPLACE. EXDEV with a delta for a directory that a lower layer has.
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
  /// Makes a link that marks the file of this name as removed.
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
