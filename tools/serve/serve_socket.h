// The socket on which a server listens. One path has one server at a time, and a server serves one user.
//
// A killed server leaves its socket behind. No system call both checks that no process listens on a socket
// and replaces it. Servers therefore exclude each other by a lock on `PATH.lock`: only the holder of the lock
// may replace a dead socket.
//
// A user who may write a directory above may give the socket's directory another name. The directory is
// therefore opened once, and the socket and the lock are made and removed through its descriptor.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <filesystem>
#include <optional>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs::serve {

/// The process at the other end of a socket, as the kernel knows it.
struct Peer {
  pid_t pid = 0;  // 0 if the process is in a pid namespace that is not visible here
  uid_t uid = 0;
};

/// Returns the peer of a connected socket. Both sides may call it.
Result<Peer> peer_of(int socket);

/// Returns true if the peer may attach: the owner of the server and root may. The socket's mode has the same
/// effect; this check still holds if another program has changed the mode.
[[nodiscard]] bool is_welcome(const Peer& peer);

class ServeSocket {
 public:
  /// @return EADDRINUSE: another server or another program listens there;
  ///         EEXIST: the path is a file that is no socket;
  ///         EPERM: another user owns the lock's file, or a user other than this one and root owns a dead
  ///         socket;
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
  UniqueFd directory_;  // of the socket
  UniqueFd lock_;
  UniqueFd socket_;
  struct stat file_ {};  // status of the socket when it was made
};

/// @return ENOENT, ECONNREFUSED: no server listens there; EACCES;
///         EAGAIN: the queue of waiting connections is full; a server accepts them within moments;
///         EPROTOTYPE: the socket has another type. Each message says how to continue.
Result<UniqueFd> connect_to_server(const std::filesystem::path& path);

}  // namespace stfs::serve
