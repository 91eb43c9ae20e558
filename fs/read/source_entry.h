// Opens an entry of a source directory, which another user may own and change meanwhile.
//
// A symbolic link is followed only by the rule of core/storage/trusted_links.h, which each link of a chain
// must meet: the link's owner is the mounting user or root, or owns the file behind it too. So a link that
// another user has made shows nothing that this user does not own: `config.json -> /etc/shadow` in a
// directory that root mounts is EACCES. The links of a hub's cache are followed. A link that leads to another
// file system is EXDEV, because that may be this mount, which would wait for itself.
#pragma once

#include <sys/stat.h>

#include <compare>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/storage/permissions.h"

namespace stfs {

/// Which file or directory it is. Another user may give its path to another one at any time, also to one that
/// has its inode number.
struct EntryIdentity {
  dev_t device = 0;
  ino_t inode = 0;            // 0: none
  std::int64_t birth_ns = 0;  // 0: the file system does not tell it, or not always
  friend auto operator<=>(const EntryIdentity&, const EntryIdentity&) = default;
};
/// @param file  a descriptor, also of O_PATH.
EntryIdentity identity_of(int file, const struct stat& status);

struct SourceEntry {
  struct stat status {};  // of the file, behind a link
  EntryIdentity identity{};
  Permissions permissions{};  // what the file allows, with its access control list
  bool is_link = false;       // the name is a symbolic link
  bool is_copy = false;       // of a private directory: a mount has copied it (source_files.h)
  UniqueFd file{};            // open for reading; none if this process may not read it
};

/// Opens a regular file or a directory for reading. ENOENT also for other kinds of files, and for directories
/// on which something is mounted. EACCES, EXDEV: a link that is not followed.
/// @param directory  a descriptor, also of O_PATH.
Result<SourceEntry> open_source_entry(int directory, const std::string& name);

/// Opens a directory for calls that end in `at`. None if a link on its path is not followed.
UniqueFd open_directory_path(const std::filesystem::path& path);

/// Whether a name can be one of an entry: no path, and neither `.` nor `..`.
bool is_entry_name(std::string_view name);

}  // namespace stfs
