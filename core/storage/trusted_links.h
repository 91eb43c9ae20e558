// Follows symbolic links, but no link by which another user would choose the file.
//
// Each link on the way must belong to root, to this process's user, or to the owner of the file at the end.
// The links of a hub's cache, `snapshots/X/model.safetensors -> ../../blobs/Y`, are of one owner and are
// followed. A link that another user has made leads only to that user's files: else who may write a directory
// would show, or change, private files with the rights of the user who mounts it. The rule holds for the last
// component, for the directories before it, and for each link of a chain. In a FUSE mount of another user's,
// links and files belong to that user, whatever their server says.
//
// A link of /proc to an open file is not followed behind another user's link: that file may lie in a mount
// that is not here.
//
// The caller gets a descriptor, so what the links lead to later does not matter.
//
// Another user's mount of FUSE is not entered where another user may have chosen it: at the last name, and
// behind a link of such a user (foreign_mount.h). A path that ends in a slash enters what it names.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

struct FollowedFile {
  UniqueFd fd;  // that leads to the file only (O_PATH)
  struct stat status {};

  /// Opens the file itself. None: errno tells why.
  [[nodiscard]] UniqueFd open(int flags) const;
};

enum class OtherMounts : std::uint8_t {
  Entered,
  NotForeign,  // another user's is not entered anywhere on the path
  Refused,     // none is
};

/// Finds the file at the path, of any kind.
/// @param directory  for a relative path; AT_FDCWD: the current directory.
/// @return EACCES: a link that is not trusted, by name. ELOOP: too many links. EXDEV: another user's mount,
/// or any with OtherMounts::Refused.
Result<FollowedFile> follow_trusted_links(int directory, const std::string& path,
                                          OtherMounts mounts = OtherMounts::Entered);
/// The same, whoever has made the links.
Result<FollowedFile> follow_all_links(const std::string& path);

/// From now on OtherMounts::Entered means NotForeign in this process: for a daemon, which nobody can end
/// while it waits in such a mount.
void enter_no_foreign_mounts();

/// The path of an open file without links. The kernel tells it, and no file system is asked.
/// @param opened_as  is returned if it is not known, and for a file in a mount of another mount namespace.
std::filesystem::path real_path_of(int descriptor, const std::filesystem::path& opened_as);
/// The same of a path, with all links followed; the path itself if it leads nowhere.
std::filesystem::path real_path(const std::filesystem::path& path);

}  // namespace stfs
