// Listens, holds the lock beside the socket, and connects.
#include "tools/serve/serve_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <system_error>

#include "core/base/shell_word.h"
#include "core/storage/group_members.h"

namespace stfs::upload {
namespace {

constexpr mode_t kMode = S_IRUSR | S_IWUSR;
constexpr int kBacklog = 128;

Result<sockaddr_un> address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& text = path.native();
  if (text.empty() || text.find('\0') != std::string::npos) {
    return fail(ErrorCode::InvalidArgument, EINVAL, "a socket needs a path");
  }
  if (text.size() >= sizeof(address.sun_path)) {
    return fail(ErrorCode::InvalidArgument, ENAMETOOLONG,
                fmt::format("{}: the path of a socket has at most {} bytes: choose a shorter one", text,
                            sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, text.data(), text.size());
  return address;
}

Result<UniqueFd> open_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail_system(errno, "socket", "create");
  return socket;
}

/// Connects. Returns 0 or the errno.
int connect_errno(int socket, const sockaddr_un& address) {
  int result = 0;
  do {
    result = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

std::filesystem::path lock_path(const std::filesystem::path& path) {
  return path.native() + ".lock";
}

tl::unexpected<Error> in_use(const std::filesystem::path& path, pid_t holder) {
  const std::string who = holder > 0 ? fmt::format(" (process {})", holder) : "";
  return fail(
      ErrorCode::Busy, EADDRINUSE,
      fmt::format("{}: another stfs serve{} uses this socket: end it first, or choose another --socket",
                  path.native(), who));
}

/// Returns the pid of the listening process for a message.
pid_t listener_of(const sockaddr_un& address) {
  const auto socket = open_socket();
  if (!socket || connect_errno(socket->get(), address) != 0) return 0;
  const auto peer = peer_of(socket->get());
  return peer ? peer->pid : 0;
}

/// Returns whether the lock's file still has its name. A server removes the file when it ends; a lock on a
/// removed file excludes nobody.
Result<bool> is_still_there(int lock, const std::filesystem::path& path) {
  struct stat held {};
  struct stat there {};
  if (::fstat(lock, &held) != 0) return fail_system(errno, path.native(), "query");
  if (::lstat(path.c_str(), &there) != 0) {
    if (errno == ENOENT) return false;
    return fail_system(errno, path.native(), "query");
  }
  return held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

/// Anybody may make a file of the lock's name in a directory like /tmp, and this user may have one there for
/// something else: the lock is removed at the end.
Result<void> check_own(const std::filesystem::path& lock_at) {
  struct stat there {};
  if (::lstat(lock_at.c_str(), &there) != 0) return {};
  const bool is_own = is_same_user(there.st_uid, ::geteuid());
  const bool is_link = S_ISLNK(there.st_mode);  // open(2) refuses it
  if (is_own && (is_link || (S_ISREG(there.st_mode) && there.st_size == 0))) return {};
  if (is_own) {
    return fail(ErrorCode::System, EEXIST,
                fmt::format("{}: is no lock of a server, which is an empty file: choose another --socket",
                            lock_at.native()));
  }
  return fail(ErrorCode::System, EPERM,
              fmt::format("{}: belongs to another user (uid {}): choose a --socket in a directory where only "
                          "you may make files",
                          lock_at.native(), there.st_uid));
}

Result<UniqueFd> take_lock(const std::filesystem::path& path, const sockaddr_un& address) {
  const std::filesystem::path lock_at = lock_path(path);
  for (;;) {
    if (auto is_own = check_own(lock_at); !is_own) return pass_on(std::move(is_own));
    UniqueFd lock(::open(lock_at.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, kMode));
    if (!lock) return fail_system(errno, lock_at.native(), "open");
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return in_use(path, listener_of(address));
      return fail_system(errno, lock_at.native(), "lock");
    }
    const auto is_there = is_still_there(lock.get(), lock_at);
    if (!is_there) return tl::unexpected(is_there.error());
    if (!*is_there) continue;
    if (auto is_own = check_own(lock_at); !is_own) return pass_on(std::move(is_own));  // made meanwhile
    return lock;
  }
}

/// The caller holds the lock. Other programs do not know the lock, so a socket that still answers is left
/// alone.
Result<void> remove_dead_socket(const std::filesystem::path& path, const sockaddr_un& address) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return {};
    return fail_system(errno, path.native(), "query");
  }
  if (!S_ISSOCK(status.st_mode)) {
    return fail(ErrorCode::InvalidArgument, EEXIST,
                fmt::format("{}: is not a socket: choose another --socket", path.native()));
  }
  const auto probe = open_socket();
  if (!probe) return tl::unexpected(probe.error());
  const int error = connect_errno(probe->get(), address);
  if (error == ECONNREFUSED) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail_system(errno, path.native(), "remove");
    return {};
  }
  if (error == ENOENT) return {};
  if (error == EACCES) return fail_system(error, path.native(), "connect");
  return fail(ErrorCode::Busy, EADDRINUSE,
              fmt::format("{}: another program uses this socket: choose another --socket", path.native()));
}

std::string why_not_connected(const std::filesystem::path& path, int error) {
  const std::string& text = path.native();
  switch (error) {
    case ENOENT:
      return fmt::format("{}: no server uses this socket: start `stfs serve SOURCE --device cpu --socket {}`",
                         text, shell_word(text));
    case ECONNREFUSED:
      // The kernel also gives this errno for a regular file.
      if (std::error_code ignored; !std::filesystem::is_socket(path, ignored))
        return text + ": is not a socket";
      return fmt::format("{}: the server of this socket has died: start `stfs serve` again", text);
    case EACCES:
      return fmt::format("{}: this user may not connect: the server belongs to another user", text);
    case EPROTOTYPE: return fmt::format("{}: is the socket of another program", text);
    default: return fmt::format("{}: connect: {}", text, std::generic_category().message(error));
  }
}

}  // namespace

Result<Peer> peer_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return fail_system(errno, "socket", "ask who the peer is");
  }
  return Peer{credentials.pid, credentials.uid};
}

bool is_welcome(const Peer& peer) {
  return peer.uid == 0 || is_same_user(peer.uid, ::geteuid());
}

Result<ServeSocket> ServeSocket::listen(const std::filesystem::path& path) {
  const auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  auto lock = take_lock(path, *address);
  if (!lock) return pass_on(std::move(lock));
  if (auto removed = remove_dead_socket(path, *address); !removed) {
    ::unlink(lock_path(path).c_str());
    return pass_on(std::move(removed));
  }
  auto socket = open_socket();
  if (!socket) return pass_on(std::move(socket));
  // Set the mode before the socket has a name. On Linux the file gets the mode of the socket, so nobody can
  // connect in between.
  if (::fchmod(socket->get(), kMode) != 0) return fail_system(errno, path.native(), "set the mode");
  if (::bind(socket->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    const int error = errno;
    ::unlink(lock_path(path).c_str());
    return fail_system(error, path.native(), "bind");
  }
  ServeSocket listening;
  std::error_code ignored;
  listening.path_ = std::filesystem::absolute(path, ignored);
  listening.lock_ = std::move(*lock);
  listening.socket_ = std::move(*socket);
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return fail_system(errno, path.native(), "query");
  listening.inode_ = status.st_ino;
  if (::listen(listening.socket_.get(), kBacklog) != 0) return fail_system(errno, path.native(), "listen");
  return listening;
}

ServeSocket::~ServeSocket() {
  if (!lock_) return;
  struct stat status {};
  // Somebody may have replaced the socket by hand.
  if (::lstat(path_.c_str(), &status) == 0 && status.st_ino == inode_) ::unlink(path_.c_str());
  const auto is_there = is_still_there(lock_.get(), lock_path(path_));
  if (is_there && *is_there) ::unlink(lock_path(path_).c_str());
}

Result<std::optional<ServeSocket::Connection>> ServeSocket::accept() {
  for (;;) {
    UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection) {
      // ECONNABORTED: the peer has already gone.
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
      return fail_system(errno, path_.native(), "accept");
    }
    const auto peer = peer_of(connection.get());
    if (!peer) return tl::unexpected(peer.error());
    return Connection{std::move(connection), *peer};
  }
}

Result<UniqueFd> connect_to_server(const std::filesystem::path& path) {
  const auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  auto socket = open_socket();
  if (!socket) return pass_on(std::move(socket));
  const int error = connect_errno(socket->get(), *address);
  if (error != 0) return fail(ErrorCode::System, error, why_not_connected(path, error));
  return std::move(*socket);
}

}  // namespace stfs::upload
