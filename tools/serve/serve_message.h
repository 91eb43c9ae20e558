// One packet of the protocol (serve_protocol.h), checked: a peer may send anything.
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

namespace stfs::upload {

struct ServeMessage {
  ServeKind kind = ServeKind::Attach;
  std::uint64_t generation = 0;
  std::uint64_t document_bytes = 0;
  int errno_value = 0;
  std::string text = {};
};

/// A Refusal or a Stuck that tells an error; its text is cut where it is too long.
ServeMessage message_of(ServeKind kind, const Error& error);

/// The packet. @param descriptors  how many will go with it.
std::string encode(const ServeMessage& message, std::size_t descriptors);

/// @param descriptors  how many came with it.
/// @return EPROTO with what is wrong; EPROTONOSUPPORT where the peer speaks another version.
Result<ServeMessage> decode(std::string_view packet, std::size_t descriptors);

/// Never waits. The descriptors stay the caller's.
/// @return EAGAIN where the peer has too much unread (the message may be sent again later); EPIPE where it
/// has gone.
Result<void> send_message(int socket, const ServeMessage& message, std::span<const int> descriptors = {});

struct ReceivedMessage {
  ServeMessage message;
  std::vector<UniqueFd> descriptors;
};

/// Descriptors that a peer sends unasked would fill our table: who expects none has them thrown away.
enum class Incoming : std::uint8_t { NoDescriptors, Descriptors };

/// Never waits.
/// @return nothing where the peer has gone; EAGAIN where it has not said anything; decode()'s errors.
Result<std::optional<ReceivedMessage>> receive_message(int socket, Incoming incoming);

}  // namespace stfs::upload
