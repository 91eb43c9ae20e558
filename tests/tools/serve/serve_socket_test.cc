// The socket of a server: one server uses it at a time, and the socket of a dead server is replaced.
#include "tools/serve/serve_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::serve;

namespace {

/// Listens as some other program would.
UniqueFd foreign_listener(const std::string& path, int type) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(::listen(socket.get(), 1) == 0);
  return socket;
}

}  // namespace

TEST_CASE("a server's socket is for its owner alone, and is gone with the server", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "s";
  const auto before = test::open_descriptors();
  {
    auto socket = ServeSocket::listen(path);
    REQUIRE(socket);
    struct stat status {};
    REQUIRE(::lstat(path.c_str(), &status) == 0);
    CHECK(status.st_mode == (S_IFSOCK | 0600U));
    const auto client = connect_to_server(path);
    REQUIRE(client);
    const auto accepted = socket->accept();
    REQUIRE(accepted);
    REQUIRE(*accepted);
    CHECK((*accepted)->peer.pid == ::getpid());
    CHECK((*accepted)->peer.uid == ::geteuid());
    CHECK(is_welcome((*accepted)->peer));
    CHECK_FALSE(*socket->accept());
  }
  CHECK(std::filesystem::is_empty(directory.path()));
  CHECK(test::open_descriptors() == before);
}

TEST_CASE("a server without a descriptor for a client says so, and serves the client later",
          "[tools][serve]") {
  const test::TemporaryDirectory directory;
  auto socket = ServeSocket::listen(directory / "s");
  REQUIRE(socket);
  const auto client = connect_to_server(directory / "s");
  REQUIRE(client);
  int why = 0;
  {
    const test::FewDescriptors none(0);
    const auto accepted = socket->accept();
    if (!accepted) why = accepted.error().errno_value;
  }
  CHECK(why == EMFILE);
  const auto accepted = socket->accept();
  REQUIRE(accepted);
  CHECK(*accepted);
}

TEST_CASE("root and the owner are welcome, others are not", "[tools][serve]") {
  CHECK(is_welcome({1, 0}));
  CHECK(is_welcome({1, ::geteuid()}));
  CHECK_FALSE(is_welcome({1, ::geteuid() + 1}));
}

TEST_CASE("a second server on the same socket is refused and told by whom", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const auto first = ServeSocket::listen(directory / "s");
  REQUIRE(first);
  const auto second = ServeSocket::listen(directory / "s");
  REQUIRE_FALSE(second);
  CHECK(second.error().errno_value == EADDRINUSE);
  CHECK(second.error().message == (directory / "s") + ": another stfs serve (process " +
                                      std::to_string(::getpid()) +
                                      ") uses this socket: end it first, or choose another --socket");
  CHECK(connect_to_server(directory / "s"));
}

TEST_CASE("the socket of a killed server is taken over", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "s";
  const pid_t child = ::fork();
  if (child == 0) {
    const auto socket = ServeSocket::listen(path);
    ::_exit(socket ? 0 : 1);  // without destructors, as after kill -9
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(std::filesystem::exists(path));
  const auto dead = connect_to_server(path);
  REQUIRE_FALSE(dead);
  CHECK(dead.error().errno_value == ECONNREFUSED);
  CHECK(dead.error().message.find("the server of this socket has died") != std::string::npos);
  {
    const auto socket = ServeSocket::listen(path);
    REQUIRE(socket);
    CHECK(connect_to_server(path));
  }
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST_CASE("of many servers that start at once over a dead socket, one serves", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "s";
  for (int round = 0; round < 50; ++round) {
    { const UniqueFd dead = foreign_listener(path, SOCK_SEQPACKET); }
    std::atomic<int> served = 0;
    std::atomic<int> refused = 0;
    std::atomic<int> waiting = 4;
    std::vector<std::thread> threads;
    for (int at = 0; at < 4; ++at) {
      threads.emplace_back([&] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        const auto socket = ServeSocket::listen(path);
        if (socket) ++served;
        if (!socket && socket.error().errno_value == EADDRINUSE) ++refused;
        // The serving thread keeps its socket until the others have tried.
        while (served + refused < 4 && socket) std::this_thread::yield();
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(served == 1);
    REQUIRE(refused == 3);
    REQUIRE(std::filesystem::is_empty(directory.path()));
  }
}

TEST_CASE("servers that come and go never leave two at a time, or none that can", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "s";
  std::atomic<int> serving = 0;
  std::atomic<int> served = 0;
  std::atomic<bool> was_double = false;
  std::mutex mutex;
  std::string wrong;  // guarded by it
  const auto note = [&](const Error& error) {
    const std::scoped_lock lock(mutex);
    wrong += error.message + "\n";
  };
  std::vector<std::thread> threads;
  for (int at = 0; at < 4; ++at) {
    threads.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        auto socket = ServeSocket::listen(path);
        if (!socket) {
          if (socket.error().errno_value != EADDRINUSE) note(socket.error());
          continue;
        }
        if (++serving > 1) was_double = true;
        // The other threads also connect, to find out whether a server runs. This thread accepts only the
        // connections that are waiting now, so a full queue (EAGAIN) is a right answer.
        while (*socket->accept()) {
        }
        auto connected = connect_to_server(path);
        if (!connected && connected.error().errno_value != EAGAIN) note(connected.error());
        ++served;
        --serving;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(was_double);
  CHECK(wrong == "");
  CHECK(served > 0);
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST_CASE("what is no dead socket is left alone", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const std::string file = directory.write("file", "precious");
  const auto at_file = ServeSocket::listen(file);
  REQUIRE_FALSE(at_file);
  CHECK(at_file.error().errno_value == EEXIST);
  CHECK(test::content_of(file) == "precious");
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    const std::string path = directory / ("other" + std::to_string(type));
    const UniqueFd other = foreign_listener(path, type);
    const auto socket = ServeSocket::listen(path);
    REQUIRE_FALSE(socket);
    CHECK(socket.error().errno_value == EADDRINUSE);
    CHECK(std::filesystem::exists(path));
    CHECK_FALSE(std::filesystem::exists(path + ".lock"));
    if (type == SOCK_STREAM) {
      CHECK(socket.error().message.find("another program uses this socket") != std::string::npos);
      CHECK(connect_to_server(path).error().message == path + ": is the socket of another program");
    }
  }
  std::filesystem::create_symlink(file, directory / "t.lock");
  const auto linked = ServeSocket::listen(directory / "t");
  REQUIRE_FALSE(linked);
  CHECK(linked.error().errno_value == ELOOP);
}

TEST_CASE("a file of the lock's name that is no lock stays", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "s";
  std::ofstream(path + ".lock") << "packages of somebody";
  const auto socket = ServeSocket::listen(path);
  REQUIRE_FALSE(socket);
  CHECK(socket.error().errno_value == EEXIST);
  CHECK(socket.error().message.starts_with(path + ".lock: is no lock of a server"));
  CHECK(test::content_of(path + ".lock") == "packages of somebody");
  CHECK_FALSE(std::filesystem::exists(path));
  // A server that was killed has left an empty one.
  std::ofstream(path + ".lock", std::ios::trunc).close();
  CHECK(ServeSocket::listen(path));
}

TEST_CASE("a server that was replaced by hand removes nothing of its successor", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "s";
  {
    const auto socket = ServeSocket::listen(path);
    REQUIRE(socket);
    std::filesystem::rename(path, path + ".old");  // its inode is not free to be used again
    std::ofstream(path) << "new";
    std::filesystem::rename(path + ".lock", path + ".lock.old");
    std::ofstream(path + ".lock") << "new";
  }
  CHECK(test::content_of(path) == "new");
  CHECK(test::content_of(path + ".lock") == "new");
}

TEST_CASE("a server removes its files from the directory that it has opened", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const std::filesystem::path served = directory / "served";
  const std::filesystem::path moved = directory / "moved";
  const std::filesystem::path other = directory / "private";
  std::filesystem::create_directory(served);
  std::filesystem::create_directory(other);
  for (const char* name : {"private/s", "private/s.lock"}) directory.write(name, "precious");
  {
    const auto socket = ServeSocket::listen(served / "s");
    REQUIRE(socket);
    std::filesystem::rename(served, moved);
    std::filesystem::create_symlink(other, served);
    CHECK(connect_to_server(moved / "s"));
  }
  CHECK(std::filesystem::is_empty(moved));
  for (const char* name : {"s", "s.lock"}) CHECK(test::content_of(other / name) == "precious");
}

TEST_CASE("another user's dead socket stays", "[tools][serve]") {
  if (::geteuid() != 0) return;  // only root may give files away
  const test::TemporaryDirectory directory;
  const std::string path = directory / "s";
  { const UniqueFd dead = foreign_listener(path, SOCK_SEQPACKET); }
  REQUIRE(::chown(path.c_str(), 23456, 23456) == 0);
  const auto socket = ServeSocket::listen(path);
  REQUIRE_FALSE(socket);
  CHECK(socket.error().errno_value == EPERM);
  CHECK(socket.error().message.starts_with(path + ": belongs to another user (uid 23456)"));
  CHECK(std::filesystem::is_socket(path));
  CHECK_FALSE(std::filesystem::exists(path + ".lock"));
}

TEST_CASE("paths that can't be a socket's are told", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const auto endless = ServeSocket::listen(directory / std::string(120, 'x'));
  REQUIRE_FALSE(endless);
  CHECK(endless.error().errno_value == ENAMETOOLONG);
  CHECK(endless.error().message.find("107 bytes") != std::string::npos);
  const auto long_name = ServeSocket::listen(directory / std::string(81, 'x'));
  REQUIRE_FALSE(long_name);
  CHECK(long_name.error().errno_value == ENAMETOOLONG);
  CHECK(ServeSocket::listen(directory / "").error().errno_value == EEXIST);
  CHECK(ServeSocket::listen("").error().errno_value == EINVAL);
  CHECK(ServeSocket::listen(directory / "none/s").error().errno_value == ENOENT);
  CHECK(connect_to_server(directory / "none").error().errno_value == ENOENT);
  CHECK(connect_to_server(directory / "none").error().message.find("stfs serve SOURCE") != std::string::npos);
  CHECK(connect_to_server(directory.write("file", "")).error().message.find("is not a socket") !=
        std::string::npos);
}
