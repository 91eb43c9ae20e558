// Finds the process that holds a lock, for messages.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

#include "core/base/byte_range.h"
#include "core/storage/file.h"

namespace stfs {

/// Returns the process that holds a lock of fcntl(2) overlapping the range: a lock of an open file
/// description or of a process. F_OFD_GETLK reports no pid for the first kind, so this reads /proc/PID/fdinfo
/// of each descriptor of the file in the processes that we may inspect, and then /proc/locks, which names the
/// second kind for all users. Ends after two seconds, also if another user holds the search up
/// (other_processes.h): for messages only.
/// @return nothing also if another user's process holds the lock and only root can see which one.
std::optional<pid_t> find_lock_holder(const FileIdentity& file, ByteRange range);
/// Returns the process that holds a lock of flock(2) on a file or a directory, which is no link and no mount.
/// Any user finds the process.
std::optional<pid_t> find_flock_holder(const std::filesystem::path& path);

/// "process 4711 (python3) of user 1000", or "another process" if the process is not known.
std::string holder_text(std::optional<pid_t> holder);

}  // namespace stfs
