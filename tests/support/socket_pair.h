// The two ends of a connection of `stfs serve`.
#pragma once

#include <sys/socket.h>

#include <array>
#include <stdexcept>
#include <string_view>

#include "core/base/unique_fd.h"

namespace stfs::test {

struct SocketPair {
  SocketPair() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw std::runtime_error("socketpair");
    }
    one = UniqueFd(ends[0]);
    other = UniqueFd(ends[1]);
  }

  UniqueFd one;
  UniqueFd other;
};

/// Sends a packet of any content. @return whether the whole packet was sent.
inline bool send_bytes(int socket, std::string_view bytes) {
  return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace stfs::test
