// Keeps out of file systems that another user's program serves.
//
// Any user may mount a file system of FUSE on a name of that user, and stop the program that serves it: each
// request then waits as long as that user likes. If others may have made a name, a mount on it is entered
// only if it is no such file system. Nothing here sends a request to one: the kernel opens a name with O_PATH
// without asking the file system that is mounted there, and the kernel's tables have the rest.
//
// Mounts of root and of this process's user are entered, whatever they are: containers mount single files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

/// Whether to enter a mount that /proc does not describe.
enum class UnknownMount : std::uint8_t { Refused, Entered };

/// EXDEV if the descriptor, opened with O_PATH, is the root of another user's mount of FUSE. Files below such
/// a root are not refused: a user who names them accepts the mount.
/// @param path  for the message, which names the user.
Result<void> check_not_foreign(int descriptor, const std::string& path,
                               UnknownMount unknown = UnknownMount::Refused);

/// Returns true if the file is anywhere in another user's mount of FUSE.
bool is_in_foreign_mount(int descriptor);

/// Opens the one name in the directory, and no link. The path is for messages.
/// @param flags  of open(2), without O_CREAT. With O_PATH, a link itself is opened.
/// @return ELOOP: a link. EXDEV: another user's mount.
Result<UniqueFd> open_entry(int directory, const std::string& name, int flags, const std::string& path);
/// Does the same for a path. Follows links of the directories before the name.
Result<UniqueFd> open_entry(const std::filesystem::path& path, int flags);

}  // namespace stfs
