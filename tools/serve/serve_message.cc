// Checks packets, and sends and receives them through a socket.
#include "tools/serve/serve_message.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace stfs::serve {
namespace {

// The largest errno, the kernel's MAX_ERRNO.
constexpr std::int32_t kMaxErrno = 4095;

tl::unexpected<Error> malformed(std::string_view what) {
  return fail(ErrorCode::InvalidArgument, EPROTO, fmt::format("not a message of stfs serve: {}", what));
}

/// The fields that a message of a kind uses. Its other fields are 0.
struct Fields {
  bool has_generation = false;
  bool has_document = false;
  bool has_text = false;
  bool has_errno = false;
  std::size_t min_descriptors = 0;
  std::size_t max_descriptors = 0;
};

std::optional<Fields> fields_of(ServeKind kind) {
  switch (kind) {
    case ServeKind::Attach:
    case ServeKind::Renew:
    case ServeKind::Query: return Fields{};
    case ServeKind::Grant: return Fields{true, true, false, false, 1, 1 + kMaxServeArenas};
    case ServeKind::Report: return Fields{false, true, true, false, 0, 0};
    case ServeKind::Newer: return Fields{true, false, false, false, 0, 0};
    case ServeKind::Refusal:
    case ServeKind::Stuck: return Fields{false, false, true, true, 0, 0};
  }
  return std::nullopt;
}

Result<void> check_fields(const ServeHeader& header, const Fields& fields) {
  if (fields.has_generation != (header.generation != 0)) return malformed("generation");
  if (fields.has_document != (header.document_bytes != 0)) return malformed("document");
  const auto most = fields.has_text ? kMaxServeReportBytes : kMaxServeDocumentBytes;
  if (header.document_bytes > most) return malformed("document too large");
  if (fields.has_text != (header.text_bytes != 0)) return malformed("text");
  if (fields.has_errno != (header.errno_value != 0)) return malformed("errno");
  if (header.errno_value < 0 || header.errno_value > kMaxErrno) return malformed("errno");
  if (header.descriptors < fields.min_descriptors || header.descriptors > fields.max_descriptors) {
    return malformed("number of descriptors");
  }
  return {};
}

/// Takes ownership of all descriptors of a packet, so that none leaks even if the packet is malformed.
std::vector<UniqueFd> take_descriptors(msghdr& packet) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&packet); part != nullptr; part = CMSG_NXTHDR(&packet, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t at = 0; at < count; ++at) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

// Room for one control message with the largest number of descriptors of a message.
constexpr std::size_t kMaxDescriptors = 1 + kMaxServeArenas;
struct alignas(cmsghdr) ControlBuffer {
  std::array<std::byte, CMSG_SPACE(kMaxDescriptors * sizeof(int))> bytes{};
};

}  // namespace

ServeMessage message_of(ServeKind kind, const Error& error) {
  ServeMessage message{kind};
  message.errno_value = error.errno_value > 0 && error.errno_value <= kMaxErrno ? error.errno_value : EIO;
  message.text = error.message.empty() ? "no reason is known" : error.message.substr(0, kMaxServeTextBytes);
  return message;
}

std::string encode(const ServeMessage& message, std::size_t descriptors) {
  ServeHeader header;
  header.kind = static_cast<std::uint16_t>(message.kind);
  header.generation = message.generation;
  header.document_bytes = message.document_bytes;
  header.descriptors = static_cast<std::uint32_t>(descriptors);
  header.errno_value = message.errno_value;
  header.text_bytes = static_cast<std::uint32_t>(message.text.size());
  std::string packet(sizeof(header), '\0');
  std::memcpy(packet.data(), &header, sizeof(header));
  return packet + message.text;
}

Result<ServeMessage> decode(std::string_view packet, std::size_t descriptors) {
  // The fields that are the same in every version.
  constexpr std::size_t kFixedBytes = offsetof(ServeHeader, kind) + sizeof(ServeHeader::kind);
  ServeHeader header;
  if (packet.size() < kFixedBytes) return malformed("too short");
  std::memcpy(&header, packet.data(), std::min(packet.size(), sizeof(header)));
  if (header.magic != kServeMagic) return malformed("wrong beginning");
  if (header.version != kServeVersion) {
    return fail(
        ErrorCode::InvalidArgument, EPROTONOSUPPORT,
        fmt::format("uses version {} of the protocol of stfs serve, and this program uses {}: use the same "
                    "version of safetensorsfs for both",
                    header.version, kServeVersion));
  }
  if (packet.size() < sizeof(header)) return malformed("too short");
  if (header.text_bytes > kMaxServeTextBytes) return malformed("text too long");
  if (packet.size() != sizeof(header) + header.text_bytes) return malformed("wrong size");
  if (header.reserved != 0) return malformed("reserved field");
  if (header.descriptors != descriptors) return malformed("descriptors are missing or too many");
  const auto fields = fields_of(static_cast<ServeKind>(header.kind));
  if (!fields) return malformed("unknown kind");
  RETURN_IF_ERROR(check_fields(header, *fields));
  return ServeMessage{static_cast<ServeKind>(header.kind), header.generation, header.document_bytes,
                      header.errno_value, std::string(packet.substr(sizeof(header)))};
}

Result<void> send_message(int socket, const ServeMessage& message, std::span<const int> descriptors) {
  std::string bytes = encode(message, descriptors.size());
  iovec part{bytes.data(), bytes.size()};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  ControlBuffer control;
  if (!descriptors.empty()) {
    packet.msg_control = control.bytes.data();
    packet.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&packet);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return {};
  // ETOOMANYREFS: this user has too many descriptors in transit. This also ends when a peer reads.
  const int error = errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS ? EAGAIN
                    : errno == ECONNRESET                                             ? EPIPE
                                                                                      : errno;
  return fail_system(error, "socket", "send");
}

Result<std::optional<ReceivedMessage>> receive_message(int socket, Incoming incoming) {
  std::array<char, kMaxServePacketBytes> bytes;
  iovec part{bytes.data(), bytes.size()};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  ControlBuffer control;
  if (incoming == Incoming::Descriptors) {
    packet.msg_control = control.bytes.data();
    packet.msg_controllen = control.bytes.size();
  }
  ssize_t size = 0;
  do {
    size = ::recvmsg(socket, &packet, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == ECONNRESET) return std::nullopt;
  if (size < 0) return fail_system(errno == EWOULDBLOCK ? EAGAIN : errno, "socket", "receive");
  std::vector<UniqueFd> descriptors = take_descriptors(packet);
  // An empty packet looks like the end of the connection. A correct peer never sends one.
  if (size == 0) return std::nullopt;
  if ((packet.msg_flags & MSG_TRUNC) != 0) return malformed("too long");
  if ((packet.msg_flags & MSG_CTRUNC) != 0) return malformed("descriptors are missing or too many");
  auto message = decode({bytes.data(), static_cast<std::size_t>(size)}, descriptors.size());
  RETURN_IF_ERROR(message);
  return ReceivedMessage{std::move(*message), std::move(descriptors)};
}

}  // namespace stfs::serve
