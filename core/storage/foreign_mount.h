// Keeps out of file systems that another user's program serves.
//
// Any user may mount a file system of FUSE on a name of their own, and stop the program that serves it: each
// request then waits for as long as that user likes. So what is mounted on a name that others may have made
// is entered only if it is no such file system. Nothing here sends a request to one: the kernel opens a name
// with O_PATH without asking what is mounted there, and its tables tell the rest.
//
// Mounts of root and of this process's user are entered, whatever they are: containers mount single files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

/// Whether to enter a mount of which /proc tells nothing.
enum class UnknownMount : std::uint8_t { Refused, Entered };

/// EXDEV if the descriptor, opened with O_PATH, is the root of another user's mount of FUSE. What lies
/// deeper in one is not refused: whoever named it meant it.
/// @param path  for the message, which names the user.
Result<void> check_not_foreign(int descriptor, const std::string& path,
                               UnknownMount unknown = UnknownMount::Refused);

/// Whether the file lies anywhere in another user's mount of FUSE.
bool is_in_foreign_mount(int descriptor);

/// Opens the one name in the directory, and no link. The path is for messages.
/// @param flags  of open(2), without O_CREAT. With O_PATH, a link itself is opened.
/// @return ELOOP: a link. EXDEV: another user's mount.
Result<UniqueFd> open_entry(int directory, const std::string& name, int flags, const std::string& path);
/// The same by a path. Links of the directories before the name are followed.
Result<UniqueFd> open_entry(const std::filesystem::path& path, int flags);

}  // namespace stfs
