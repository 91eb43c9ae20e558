// The kernel's end of /dev/fuse. It sends the same bytes as the kernel to the driver's handlers, and takes
// their replies and notifications. The real libfuse is used, and no file system is mounted.
#pragma once

#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {

using Buffer = std::vector<std::byte>;

/// The user and the thread that send a request. Thread 0 is the kernel's own.
struct Asker {
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t thread = 0;
};

struct Reply {
  int error = 0;  // an errno
  Buffer body;
};

/// Reads a structure of the protocol from the bytes of a message. Bytes behind the end of the message are
/// zeros.
template <class T>
T taken_from(std::span<const std::byte> bytes, std::size_t offset = 0) {
  T value{};
  if (offset < bytes.size())
    std::memcpy(&value, bytes.data() + offset, std::min(sizeof value, bytes.size() - offset));
  return value;
}
template <class T>
void append_to(Buffer& to, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}
/// Appends a name with its NUL.
inline void append_name(Buffer& to, std::string_view name) {
  const auto bytes = std::as_bytes(std::span(name));
  to.insert(to.end(), bytes.begin(), bytes.end());
  to.push_back(std::byte{0});
}

/// Only one may exist at a time in a program. Only one thread may use it.
class FuseWire {
 public:
  /// @param body  the bytes of a FUSE_NOTIFY_... message.
  using Notified = std::function<void(int code, std::span<const std::byte> body)>;

  FuseWire(const fuse_lowlevel_ops& operations, void* userdata, Notified notified);
  ~FuseWire();
  FuseWire(const FuseWire&) = delete;
  FuseWire& operator=(const FuseWire&) = delete;

  [[nodiscard]] fuse_session* session() const { return session_; }
  /// Returns when the handler has run. The handler may reply later.
  /// @return the request's number.
  std::uint64_t send(std::uint32_t opcode, std::uint64_t node, const Asker& asker,
                     std::span<const std::byte> body);
  /// Returns the reply, only once.
  std::optional<Reply> take(std::uint64_t request);
  /// Ends the connection: from now on all messages of the driver are refused.
  void abort() { is_aborted_ = true; }
  [[nodiscard]] bool is_aborted() const { return is_aborted_; }

  /// Takes a message that the driver writes to its file descriptor. @return as writev(2), errno set.
  ssize_t receive(std::span<const std::byte> message);
  /// Returns the wire of a file descriptor, or null.
  static FuseWire* of(int descriptor);

 private:
  fuse_session* session_ = nullptr;
  const Notified notified_;
  bool is_aborted_ = false;
  std::uint64_t requests_ = 0;
  std::map<std::uint64_t, Reply> replies_;
};

}  // namespace stfs::test
