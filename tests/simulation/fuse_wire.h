// The kernel's end of /dev/fuse: sends requests as the kernel does, byte for byte, to the handlers of the
// driver, and takes their replies and notifications. libfuse is the real one; no file system is mounted.
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

/// The user and the thread that a request comes from; thread 0: the kernel's own.
struct Asker {
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t thread = 0;
};

struct Reply {
  int error = 0;  // an errno
  Buffer body;
};

/// A structure of the protocol in the bytes of a message; zeros where the message ends before it.
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
/// With the NUL that ends it.
inline void append_name(Buffer& to, std::string_view name) {
  const auto bytes = std::as_bytes(std::span(name));
  to.insert(to.end(), bytes.begin(), bytes.end());
  to.push_back(std::byte{0});
}

/// One at a time in a program, and for one thread.
class FuseWire {
 public:
  /// @param body  of a FUSE_NOTIFY_...
  using Notified = std::function<void(int code, std::span<const std::byte> body)>;

  FuseWire(const fuse_lowlevel_ops& operations, void* userdata, Notified notified);
  ~FuseWire();
  FuseWire(const FuseWire&) = delete;
  FuseWire& operator=(const FuseWire&) = delete;

  [[nodiscard]] fuse_session* session() const { return session_; }
  /// The handler has run when this returns; it need not have replied.
  /// @return the request's number.
  std::uint64_t send(std::uint32_t opcode, std::uint64_t node, const Asker& asker,
                     std::span<const std::byte> body);
  /// The reply, once.
  std::optional<Reply> take(std::uint64_t request);
  /// From now on nobody reads what is sent: the connection is gone.
  void abort() { is_aborted_ = true; }
  [[nodiscard]] bool is_aborted() const { return is_aborted_; }

  /// What the driver has written to its descriptor. @return as writev(2), errno set.
  ssize_t receive(std::span<const std::byte> message);
  /// The wire of a descriptor, or null.
  static FuseWire* of(int descriptor);

 private:
  fuse_session* session_ = nullptr;
  const Notified notified_;
  bool is_aborted_ = false;
  std::uint64_t requests_ = 0;
  std::map<std::uint64_t, Reply> replies_;
};

}  // namespace stfs::test
