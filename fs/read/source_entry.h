// Opens an entry of a source directory. Another user may own the entry, and may change it at the same time.
//
// A symbolic link is followed only by the rule of core/storage/trusted_links.h, and each link of a chain must
// obey this rule: the link's owner is the mounting user or root, or also owns the file that the link leads
// to. Therefore a link that another user has made shows nothing that this user does not own. For example,
// `config.json -> /etc/shadow` in a directory that root mounts is EACCES. The links of a hub's cache are
// followed. A link that leads to another file system is EXDEV, because the other file system may be this
// mount, which would wait for itself.
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

/// Identifies a file or directory. Another user may put another file at the same path at any time, even a
/// file with the same inode number.
struct EntryIdentity {
  dev_t device = 0;
  ino_t inode = 0;            // 0: none
  std::int64_t birth_ns = 0;  // 0: the file system does not report it, or not always
  friend auto operator<=>(const EntryIdentity&, const EntryIdentity&) = default;
};
/// @param file  a descriptor, also of O_PATH.
EntryIdentity identity_of(int file, const struct stat& status);

struct SourceEntry {
  struct stat status {};  // of the file that a link leads to
  EntryIdentity identity{};
  Permissions permissions{};  // the name is a symbolic link
  bool is_link = false;       // the name is a symbolic link
  bool is_copy = false;       // a mount has copied the file to a private directory (source_files.h)
  UniqueFd file{};            // open for reading; none if this process may not read it
};

/// Opens a regular file or a directory for reading. ENOENT also for other kinds of files, and for directories
/// on which a file system is mounted. EACCES or EXDEV for a link that is not followed.
/// @param directory  a descriptor, also of O_PATH.
Result<SourceEntry> open_source_entry(int directory, const std::string& name);

/// Opens a directory for system calls whose names end in `at`. The descriptor is empty if a link on the path
/// is not followed.
UniqueFd open_directory_path(const std::filesystem::path& path);

/// True if an entry can have this name: a name without a slash, and neither `.` nor `..`.
bool is_entry_name(std::string_view name);

}  // namespace stfs
