// Reads /proc/PID of other users' processes, so that these processes hold the reader up as little as
// possible.
//
// A process can hold the lock of its memory map, or of a descriptor of epoll or io_uring, for as long as it
// likes: it makes the kernel copy from a file on a FUSE mount that does not answer. A reader of cmdline,
// environ, maps, smaps or fdinfo below this process's /proc/PID then waits, and for fdinfo no signal ends the
// wait. So nothing reads these files of another user's process, except for fdinfo of files that are known to
// be harmless.
//
// In the same way a user can lock a directory of /proc. A listing or a first look-up there then waits until a
// signal ends it. So callers use another thread or a child process, and have a deadline.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

/// Calls `visit` with the number of each process until it returns true. @return whether it did.
bool any_process(const std::function<bool(pid_t)>& visit);

/// An open file, as the kernel knows it without a request to the file system.
struct KnownFile {
  std::uint64_t device = 0;  // major << 32 | minor, as in FileIdentity
  std::uint64_t inode = 0;   // 0: a file of a FUSE mount that this process may not enter
  std::uint16_t mode = 0;    // 0 with it
};
/// @param link  a link of /proc to an open file, such as /proc/PID/fd/N or /proc/PID/exe.
/// @return nothing if this process may not follow the link.
std::optional<KnownFile> known_file(const std::filesystem::path& link);
/// Calls `visit` with the number, as text, and the file of each descriptor of a process until it returns
/// true.
/// @return whether it did.
bool any_descriptor(pid_t process,
                    const std::function<bool(const std::string& descriptor, const KnownFile& file)>& visit);

/// Returns the first line of /proc/PID/comm: a name that the process chooses.
std::string comm_of(pid_t process);
/// Returns the words behind a name such as "PPid:" in /proc/PID/status.
std::vector<std::string> status_words(pid_t process, std::string_view name);

}  // namespace stfs
