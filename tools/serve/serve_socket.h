// The socket that a server listens on: one server at a time, and for one user.
//
// A server that was killed leaves its socket behind. Whether somebody still listens there can't be asked and
// acted on in one step, so servers exclude each other by a lock on `PATH.lock`: who holds it may replace a
// dead socket.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs::upload {

/// The process at the other end, as the kernel knows it.
struct Peer {
  pid_t pid = 0;  // 0 where it lives in a pid namespace that we can't see
  uid_t uid = 0;
  gid_t gid = 0;
};

/// Of either end of a connected socket.
Result<Peer> peer_of(int socket);

/// The owner of the server and root may attach. The socket's mode says the same; this holds where somebody
/// has changed that.
[[nodiscard]] bool is_welcome(const Peer& peer);

class ServeSocket {
 public:
  /// @return EADDRINUSE where another server, or another program, listens there; EEXIST where there is
  /// something
  ///         that is no socket; ENAMETOOLONG; the errors of the directory.
  static Result<ServeSocket> listen(const std::filesystem::path& path);

  ServeSocket(ServeSocket&&) noexcept = default;
  ServeSocket& operator=(ServeSocket&&) = delete;
  /// Removes the socket and the lock, if they are still the ones that it made.
  ~ServeSocket();

  /// Absolute.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// To be polled for readers.
  [[nodiscard]] int descriptor() const { return socket_.get(); }

  struct Connection {
    UniqueFd socket;
    Peer peer;
  };
  /// Never waits. @return nothing where nobody waits to be accepted.
  Result<std::optional<Connection>> accept();

 private:
  ServeSocket() = default;

  std::filesystem::path path_;
  UniqueFd lock_;
  UniqueFd socket_;
  std::uint64_t inode_ = 0;  // of the socket's file
};

/// @return ENOENT, ECONNREFUSED: nobody serves there; EACCES; EAGAIN: many others are connecting; EPROTOTYPE:
/// it is
///         another kind of socket; each with what to do.
Result<UniqueFd> connect_to_server(const std::filesystem::path& path);

}  // namespace stfs::upload
