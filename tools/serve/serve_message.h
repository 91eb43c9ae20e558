// Encodes and decodes single packets of the protocol (serve_protocol.h). Checks them, because a peer may send
// anything.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "tools/serve/serve_protocol.h"

namespace stfs::serve {

struct ServeMessage {
  ServeKind kind = ServeKind::Attach;
  std::uint64_t generation = 0;
  std::uint64_t document_bytes = 0;
  int errno_value = 0;
  std::string text = {};
};

/// Returns a Refusal or a Stuck that carries an error. A text that is too long is cut.
ServeMessage message_of(ServeKind kind, const Error& error);

/// Returns the packet. @param descriptors  the number of descriptors that will be sent with it.
std::string encode(const ServeMessage& message, std::size_t descriptors);

/// @param descriptors  the number of descriptors that came with the packet.
/// @return EPROTO with the mistake; EPROTONOSUPPORT if the peer uses another version.
Result<ServeMessage> decode(std::string_view packet, std::size_t descriptors);

/// Never waits. The caller keeps the descriptors.
/// @return EAGAIN: the peer has too many unread messages (the caller may send again later); EPIPE: the peer
///         has disconnected.
Result<void> send_message(int socket, const ServeMessage& message, std::span<const int> descriptors = {});

struct ReceivedMessage {
  ServeMessage message;
  std::vector<UniqueFd> descriptors;
};

/// Unexpected descriptors from a peer would fill this process's table. For a caller that expects none they
/// are closed.
enum class Incoming : std::uint8_t { NoDescriptors, Descriptors };

/// Never waits.
/// @return nothing if the peer has disconnected; EAGAIN if there is no packet yet; decode()'s errors.
Result<std::optional<ReceivedMessage>> receive_message(int socket, Incoming incoming);

}  // namespace stfs::serve
