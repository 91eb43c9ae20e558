// The socket on which a server listens. One path has one server at a time, and a server serves one user.
//
// A killed server leaves its socket behind. No system call both checks that nobody listens on a socket and
// replaces it. Therefore servers exclude each other by a lock on `PATH.lock`: only the holder of the lock may
// replace a dead socket.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs::upload {

/// The process at the other end of a socket, as the kernel knows it.
struct Peer {
  pid_t pid = 0;  // 0 if the process is in a pid namespace that is not visible here
  uid_t uid = 0;
};

/// Returns the peer of a connected socket. Both sides may call it.
Result<Peer> peer_of(int socket);

/// Returns whether the peer may attach: the owner of the server and root may. The socket's mode says the
/// same; this check still holds if somebody has changed the mode.
[[nodiscard]] bool is_welcome(const Peer& peer);

class ServeSocket {
 public:
  /// @return EADDRINUSE if another server or another program listens there;
  ///         EEXIST if the path is a file that is no socket;
  ///         EPERM if another user has made the lock's file;
  ///         ENAMETOOLONG; the errors of the directory.
  static Result<ServeSocket> listen(const std::filesystem::path& path);

  ServeSocket(ServeSocket&&) noexcept = default;
  ServeSocket& operator=(ServeSocket&&) = delete;
  /// Removes the socket and the lock, if they are still the files that this server created.
  ~ServeSocket();

  /// The absolute path of the socket.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// A descriptor for poll(2): readable when a peer waits to be accepted.
  [[nodiscard]] int descriptor() const { return socket_.get(); }

  struct Connection {
    UniqueFd socket;
    Peer peer;
  };
  /// Never waits. @return nothing if no peer waits to be accepted.
  Result<std::optional<Connection>> accept();

 private:
  ServeSocket() = default;

  std::filesystem::path path_;
  UniqueFd lock_;
  UniqueFd socket_;
  std::uint64_t inode_ = 0;  // of the socket's file
};

/// @return ENOENT, ECONNREFUSED: no server listens there; EACCES;
///         EAGAIN: the queue of waiting connections is full; a server accepts them within moments;
///         EPROTOTYPE: the socket has another type. Each message says what to do.
Result<UniqueFd> connect_to_server(const std::filesystem::path& path);

}  // namespace stfs::upload
