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

#include "core/base/absolute_path.h"
#include "core/base/shell_word.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/group_members.h"
#include "core/storage/trusted_links.h"

namespace stfs::serve {
namespace {

constexpr mode_t kMode = S_IRUSR | S_IWUSR;
constexpr int kBacklog = 128;
constexpr std::size_t kMostNameBytes = 80;  // the kernel takes 107 with "/proc/self/fd/", a number and a "/"

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

/// The socket's directory is opened once: a user who may write a directory above may give its path to another
/// directory.
struct Place {
  std::filesystem::path path;  // for messages
  UniqueFd directory;          // only leads to the files (O_PATH)
  std::string name;            // of the socket in the directory
  sockaddr_un address{};       // through the open directory
};

Result<Place> open_place(const std::filesystem::path& path) {
  RETURN_IF_ERROR(address_of(path));
  auto directory = follow_to_directory(directory_of(path));
  if (!directory && directory.error().errno_value == EXDEV) return pass_on(std::move(directory));
  if (!directory) return fail_system(directory.error().errno_value, path.native(), "open its directory");
  Place place{
      .path = path, .directory = std::move(*directory), .name = path.has_filename() ? path.filename() : "."};
  if (::access("/proc/self/fd", F_OK) != 0) {  // a container without /proc
    place.address = address_of(path).value();
    return place;
  }
  if (place.name.size() > kMostNameBytes) {
    return fail(ErrorCode::InvalidArgument, ENAMETOOLONG,
                fmt::format("{}: the name of a socket has at most {} bytes: choose a shorter one",
                            path.native(), kMostNameBytes));
  }
  const auto through = address_of(fmt::format("/proc/self/fd/{}/{}", place.directory.get(), place.name));
  RETURN_IF_ERROR(through);
  place.address = *through;
  return place;
}

std::string lock_name(const std::string& name) {
  return name + ".lock";
}

tl::unexpected<Error> in_use(const std::filesystem::path& path, pid_t holder) {
  const std::string who = holder > 0 ? fmt::format(" (process {})", holder) : "";
  return fail(
      ErrorCode::Busy, EADDRINUSE,
      fmt::format("{}: another stfs serve{} uses this socket: end it first, or choose another --socket",
                  path.native(), who));
}

tl::unexpected<Error> of_another_user(const std::string& path, uid_t owner) {
  return fail(ErrorCode::System, EPERM,
              fmt::format("{}: belongs to another user (uid {}): choose a --socket in a directory where only "
                          "you may make files",
                          path, owner));
}

/// Returns the pid of the listening process for a message.
pid_t listener_of(const sockaddr_un& address) {
  const auto socket = open_socket();
  if (!socket || connect_errno(socket->get(), address) != 0) return 0;
  const auto peer = peer_of(socket->get());
  return peer ? peer->pid : 0;
}

/// The status of the name itself. EXDEV: another user's file system is mounted there, which may never answer.
Result<struct stat> status_at(int directory, const std::string& name, const std::string& path) {
  const auto named = open_entry(directory, name, O_PATH, path);
  RETURN_IF_ERROR(named);
  struct stat there {};
  if (::fstat(named->get(), &there) != 0) return fail_system(errno, path, "query");
  return there;
}

/// Returns true if the name in the directory still leads to this file.
Result<bool> is_still_there(const struct stat& file, int directory, const std::string& name) {
  const auto there = status_at(directory, name, name);
  if (there) return file.st_dev == there->st_dev && file.st_ino == there->st_ino;
  if (there.error().errno_value == ENOENT) return false;
  return tl::unexpected(there.error());
}

/// A server removes the lock file when it ends, and a lock on a removed file excludes no other server.
Result<bool> is_lock_still_there(int lock, int directory, const std::string& name) {
  struct stat held {};
  if (::fstat(lock, &held) != 0) return fail_system(errno, name, "query");
  return is_still_there(held, directory, name);
}

/// Any user may make a file of the lock's name in a directory like /tmp. This user may also have such a file
/// for another purpose, and the server removes its lock at the end.
Result<void> check_own(int directory, const std::string& name, const std::string& path) {
  const auto there = status_at(directory, name, path);
  if (!there && there.error().errno_value == EXDEV) return tl::unexpected(there.error());
  if (!there) return {};
  const bool is_own = is_same_user(there->st_uid, ::geteuid());
  const bool is_link = S_ISLNK(there->st_mode);  // take_lock() refuses a link
  if (is_own && (is_link || (S_ISREG(there->st_mode) && there->st_size == 0))) return {};
  if (!is_own) return of_another_user(path, there->st_uid);
  return fail(ErrorCode::System, EEXIST,
              path + ": is no lock of a server, which is an empty file: choose another --socket");
}

Result<UniqueFd> take_lock(const Place& place) {
  const std::string name = lock_name(place.name);
  const std::string path = lock_name(place.path.native());
  const int directory = place.directory.get();
  for (;;) {
    RETURN_IF_ERROR(check_own(directory, name, path));
    constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NONBLOCK;
    auto opened = open_entry(directory, name, kFlags, path);
    if (!opened && opened.error().errno_value != ENOENT) return opened;
    if (!opened) opened = UniqueFd(::openat(directory, name.c_str(), kFlags | O_CREAT | O_EXCL, kMode));
    if (!*opened && errno == EEXIST) continue;
    UniqueFd lock = std::move(*opened);
    if (!lock) return fail_system(errno, path, "open");
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return in_use(place.path, listener_of(place.address));
      return fail_system(errno, path, "lock");
    }
    const auto is_there = is_lock_still_there(lock.get(), directory, name);
    RETURN_IF_ERROR(is_there);
    if (!*is_there) continue;
    RETURN_IF_ERROR(check_own(directory, name, path));  // the file may be new since the first check
    return lock;
  }
}

/// The caller holds the lock. Other programs do not know the lock, so a socket that still answers stays.
Result<void> remove_dead_socket(const Place& place) {
  const std::string& path = place.path.native();
  const auto found = status_at(place.directory.get(), place.name, path);
  const int why = found ? 0 : found.error().errno_value;
  if (why == ENOENT) return {};
  RETURN_IF_ERROR(found);
  const struct stat& status = *found;
  if (!S_ISSOCK(status.st_mode)) {
    return fail(ErrorCode::InvalidArgument, EEXIST, path + ": is not a socket: choose another --socket");
  }
  const auto probe = open_socket();
  RETURN_IF_ERROR(probe);
  const int error = connect_errno(probe->get(), place.address);
  if (error == ECONNREFUSED) {
    const bool is_ours = status.st_uid == 0 || is_same_user(status.st_uid, ::geteuid());
    if (!is_ours) return of_another_user(path, status.st_uid);
    const auto is_there = is_still_there(status, place.directory.get(), place.name);
    RETURN_IF_ERROR(is_there);
    if (*is_there && ::unlinkat(place.directory.get(), place.name.c_str(), 0) != 0 && errno != ENOENT)
      return fail_system(errno, path, "remove");
    return {};
  }
  if (error == ENOENT) return {};
  if (error == EACCES) return fail_system(error, path, "connect");
  return fail(ErrorCode::Busy, EADDRINUSE,
              path + ": another program uses this socket: choose another --socket");
}

std::string why_not_connected(const std::filesystem::path& path, int error, bool is_socket = true) {
  const std::string& text = path.native();
  switch (error) {
    case ENOENT:
      return fmt::format("{}: no server uses this socket: start `stfs serve SOURCE --device cpu --socket {}`",
                         text, shell_word(text));
    case ECONNREFUSED:
      // The kernel also gives this errno for a regular file.
      if (!is_socket) return text + ": is not a socket";
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
  auto place = open_place(path);
  RETURN_IF_ERROR(place);
  auto lock = take_lock(*place);
  RETURN_IF_ERROR(lock);
  const int directory = place->directory.get();
  if (auto removed = remove_dead_socket(*place); !removed) {
    ::unlinkat(directory, lock_name(place->name).c_str(), 0);
    return pass_on(std::move(removed));
  }
  auto socket = open_socket();
  RETURN_IF_ERROR(socket);
  // Set the mode before the socket has a name. On Linux the file gets the mode of the socket, so no other
  // user can connect in between.
  if (::fchmod(socket->get(), kMode) != 0) return fail_system(errno, path.native(), "set the mode");
  const auto* address = reinterpret_cast<const sockaddr*>(&place->address);
  if (::bind(socket->get(), address, sizeof(place->address)) != 0) {
    const int error = errno;
    ::unlinkat(directory, lock_name(place->name).c_str(), 0);
    return fail_system(error, path.native(), "bind");
  }
  ServeSocket listening;
  std::error_code ignored;
  listening.path_ = std::filesystem::absolute(path, ignored);
  listening.lock_ = std::move(*lock);
  listening.socket_ = std::move(*socket);
  listening.directory_ = std::move(place->directory);
  const auto made = status_at(directory, place->name, path.native());
  RETURN_IF_ERROR(made);
  listening.file_ = *made;
  if (::listen(listening.socket_.get(), kBacklog) != 0) return fail_system(errno, path.native(), "listen");
  return listening;
}

ServeSocket::~ServeSocket() {
  if (!lock_) return;
  const std::string name = path_.filename();
  // Another program may have replaced the socket.
  const auto is_there = is_still_there(file_, directory_.get(), name);
  if (is_there && *is_there) ::unlinkat(directory_.get(), name.c_str(), 0);
  const auto is_locked = is_lock_still_there(lock_.get(), directory_.get(), lock_name(name));
  if (is_locked && *is_locked) ::unlinkat(directory_.get(), lock_name(name).c_str(), 0);
}

Result<std::optional<ServeSocket::Connection>> ServeSocket::accept() {
  for (;;) {
    UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection) {
      // ECONNABORTED: the peer has already disconnected.
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return std::nullopt;
      return fail_system(errno, path_.native(), "accept");
    }
    const auto peer = peer_of(connection.get());
    RETURN_IF_ERROR(peer);
    return Connection{std::move(connection), *peer};
  }
}

Result<UniqueFd> connect_to_server(const std::filesystem::path& path) {
  // connect(2) would wait for another user's file system behind a link, and no signal would end that.
  auto found = follow_all_links(path.native());
  if (!found) {
    const int why = found.error().errno_value;
    if (why == EXDEV) return tl::unexpected(std::move(found).error());
    return fail(ErrorCode::System, why, why_not_connected(path, why));
  }
  const auto address = address_of(fmt::format("/proc/self/fd/{}", found->fd.get()));
  RETURN_IF_ERROR(address);
  auto socket = open_socket();
  RETURN_IF_ERROR(socket);
  const int error = connect_errno(socket->get(), *address);
  if (error == 0) return std::move(*socket);
  return fail(ErrorCode::System, error, why_not_connected(path, error, S_ISSOCK(found->status.st_mode)));
}

}  // namespace stfs::serve
