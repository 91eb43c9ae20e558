// Follows symbolic links, but no link by which another user would choose the file.
//
// The owner of each link must be root, this process's user, or the owner of the file at the end. The links of
// a hub's cache, `snapshots/X/model.safetensors -> ../../blobs/Y`, have one owner and are followed. A link of
// another user leads only to that user's files. Otherwise any user who may write a directory could show, or
// change, private files with the rights of the mounting user. The rule holds for the last component, for the
// directories before it, and for each link of a chain. In a FUSE mount of another user, that user is the
// owner of all links and files, whatever the server says.
//
// After another user's link, a link of /proc to an open file is not followed: the file may be in a mount of
// another mount namespace.
//
// The caller gets a descriptor, so later changes of the links have no effect.
//
// A path that has the form of an address is refused (check_local(), EINVAL).
//
// A chain has at most 40 links, as in the kernel, and their texts have at most PATH_MAX bytes together: a
// user could make each link a path of thousands of names.
//
// Another user's mount of FUSE is not entered where another user may have chosen it: at the last name, and
// after a link of such a user (foreign_mount.h). A path that ends in a slash enters the mount that it names.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/storage/file.h"

namespace stfs {

struct FollowedFile {
  UniqueFd fd;  // that leads to the file only (O_PATH)
  struct stat status {};

  /// Opens the file itself. No descriptor on failure: errno has the reason.
  [[nodiscard]] UniqueFd open(int flags) const;
};

enum class OtherMounts : std::uint8_t {
  Entered,
  NotForeign,  // another user's mount is not entered anywhere on the path
  Refused,     // no mount is entered
};

/// Finds the file at the path, of any kind.
/// @param directory  for a relative path; AT_FDCWD: the current directory.
/// @return EACCES: a link that is not trusted, by name. ELOOP: too many links. EXDEV: another user's mount,
/// or any with OtherMounts::Refused.
Result<FollowedFile> follow_trusted_links(int directory, const std::string& path,
                                          OtherMounts mounts = OtherMounts::Entered);
/// Finds the file at the path, and follows the links of all users.
Result<FollowedFile> follow_all_links(const std::string& path);
/// Returns true if a look-up of the path, with the links of all users followed, passes the directory before
/// it ends or fails. Links and bind mounts of a directory share its device and inode number.
bool passes_directory(const std::string& path, const struct stat& directory);
/// Opens the directory at the path with O_PATH, and follows the links of all users. Enters another user's
/// mount only if the path names it. Never waits for such a mount behind another user's link.
/// @return EXDEV: a link leads into such a mount. ENOTDIR, ENOENT and others, as open(2).
Result<UniqueFd> follow_to_directory(const std::filesystem::path& path);

/// Opens the file or directory that a path names with O_PATH, and follows links. Unless the
/// last name is another user's link, its file system is not asked: the root of a mount is also found if its
/// server has ended.
/// @param links  Trusted: another user's link is refused, also if it leads to that user's files.
/// @return EXDEV: as follow_to_directory(). EACCES: a link that is not followed.
Result<UniqueFd> open_what_is_named(const std::filesystem::path& path, Links links = Links::All);

/// From now on OtherMounts::Entered means NotForeign in this process: a daemon that waits in such a mount
/// could not be ended.
void enter_no_foreign_mounts();

/// Does the same while it exists. For a tool that opens a path which another user has chosen.
class NoForeignMounts {
 public:
  NoForeignMounts();
  ~NoForeignMounts();
  NoForeignMounts(const NoForeignMounts&) = delete;
  NoForeignMounts& operator=(const NoForeignMounts&) = delete;

 private:
  const bool before_;
};

/// Returns the path of an open file without links. Asks only the kernel, and no file system.
/// @param opened_as  the result if the path is unknown, and for a file in a mount of another mount namespace.
std::filesystem::path real_path_of(int descriptor, const std::filesystem::path& opened_as);
/// Does the same for a path, with all links followed; returns the path itself if it leads nowhere.
std::filesystem::path real_path(const std::filesystem::path& path);

}  // namespace stfs
