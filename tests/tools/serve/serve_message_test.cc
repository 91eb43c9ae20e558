// Packets of stfs serve: packets arrive whole, wrong packets are refused, and no descriptor leaks.
#include "tools/serve/serve_message.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>

#include "tests/support/catch.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/socket_pair.h"

using namespace stfs;
using namespace stfs::serve;
using test::open_descriptors;

namespace {

UniqueFd any_descriptor() {
  return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

ServeMessage grant() {
  ServeMessage message{ServeKind::Grant};
  message.generation = 7;
  message.document_bytes = 99;
  return message;
}

/// A packet with one field of its header changed.
std::string changed(const ServeMessage& message, std::size_t descriptors,
                    const std::function<void(ServeHeader&)>& change) {
  std::string packet = encode(message, descriptors);
  ServeHeader header;
  std::memcpy(&header, packet.data(), sizeof(header));
  change(header);
  std::memcpy(packet.data(), &header, sizeof(header));
  return packet;
}

int errno_of(std::string_view packet, std::size_t descriptors = 0) {
  const auto message = decode(packet, descriptors);
  return message ? 0 : message.error().errno_value;
}

}  // namespace

TEST_CASE("a message of stfs serve arrives as it was sent, with its descriptors", "[tools][serve]") {
  const test::SocketPair pair;
  const auto before = open_descriptors();
  {
    const UniqueFd first = any_descriptor();
    const UniqueFd second = any_descriptor();
    const std::array numbers = {first.get(), second.get()};
    REQUIRE(send_message(pair.one.get(), grant(), numbers));
    const auto received = receive_message(pair.other.get(), Incoming::Descriptors);
    REQUIRE(received);
    REQUIRE(*received);
    CHECK((*received)->message.kind == ServeKind::Grant);
    CHECK((*received)->message.generation == 7);
    CHECK((*received)->message.document_bytes == 99);
    REQUIRE((*received)->descriptors.size() == 2);
    CHECK((::fcntl((*received)->descriptors[1].get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK(open_descriptors() == before);

  REQUIRE(
      send_message(pair.other.get(), message_of(ServeKind::Refusal, {ErrorCode::Busy, EBUSY, "too many"})));
  const auto refusal = receive_message(pair.one.get(), Incoming::NoDescriptors);
  REQUIRE(refusal);
  REQUIRE(*refusal);
  CHECK((*refusal)->message.errno_value == EBUSY);
  CHECK((*refusal)->message.text == "too many");
}

TEST_CASE("receiving tells silence from the end", "[tools][serve]") {
  test::SocketPair pair;
  const auto silence = receive_message(pair.one.get(), Incoming::NoDescriptors);
  REQUIRE_FALSE(silence);
  CHECK(silence.error().errno_value == EAGAIN);
  { const UniqueFd gone = std::move(pair.other); }
  const auto end = receive_message(pair.one.get(), Incoming::NoDescriptors);
  REQUIRE(end);
  CHECK_FALSE(*end);
  const auto sent = send_message(pair.one.get(), ServeMessage{ServeKind::Attach});
  REQUIRE_FALSE(sent);
  CHECK(sent.error().errno_value == EPIPE);
}

TEST_CASE("sending to a peer that does not read fails with EAGAIN and does not wait", "[tools][serve]") {
  const test::SocketPair pair;
  Result<void> sent;
  for (int at = 0; at < 100'000 && sent; ++at)
    sent = send_message(pair.one.get(), ServeMessage{ServeKind::Attach});
  REQUIRE_FALSE(sent);
  CHECK(sent.error().errno_value == EAGAIN);
}

TEST_CASE("every malformed message is refused", "[tools][serve]") {
  using Change = std::function<void(ServeHeader&)>;
  const ServeMessage attach{ServeKind::Attach};
  CHECK(errno_of(encode(attach, 0)) == 0);
  CHECK(errno_of(encode(grant(), 2), 2) == 0);

  const std::string whole = encode(attach, 0);
  for (std::size_t size = 0; size < whole.size(); ++size) CHECK(errno_of(whole.substr(0, size)) == EPROTO);
  CHECK(errno_of(whole + "x") == EPROTO);
  for (const Change& change : std::initializer_list<Change>{
           [](ServeHeader& header) { header.magic ^= 1U; }, [](ServeHeader& header) { header.kind = 0; },
           [](ServeHeader& header) { header.kind = 9; }, [](ServeHeader& header) { header.kind = 0xffff; },
           [](ServeHeader& header) { header.reserved = 1; },
           [](ServeHeader& header) { header.generation = 1; },
           [](ServeHeader& header) { header.document_bytes = 1; },
           [](ServeHeader& header) { header.errno_value = 1; },
           [](ServeHeader& header) { header.descriptors = 1; },
           [](ServeHeader& header) { header.text_bytes = 1; },
           [](ServeHeader& header) { header.text_bytes = 0xffffffff; }}) {
    CHECK(errno_of(changed(attach, 0, change)) == EPROTO);
  }
  for (const Change& change : std::initializer_list<Change>{
           [](ServeHeader& header) { header.generation = 0; },
           [](ServeHeader& header) { header.document_bytes = 0; },
           [](ServeHeader& header) { header.document_bytes = kMaxServeDocumentBytes + 1; },
           [](ServeHeader& header) { header.document_bytes = ~std::uint64_t{0}; },
           [](ServeHeader& header) { header.descriptors = 1; }}) {
    CHECK(errno_of(changed(grant(), 2, change), 2) == EPROTO);
  }
  CHECK(errno_of(encode(grant(), 0), 0) == EPROTO);
  CHECK(errno_of(encode(grant(), kMaxServeArenas + 2), kMaxServeArenas + 2) == EPROTO);

  const ServeMessage refusal = message_of(ServeKind::Refusal, {ErrorCode::Busy, EBUSY, "why"});
  CHECK(errno_of(encode(refusal, 0)) == 0);
  for (const Change& change :
       std::initializer_list<Change>{[](ServeHeader& header) { header.errno_value = 0; },
                                     [](ServeHeader& header) { header.errno_value = -1; },
                                     [](ServeHeader& header) { header.errno_value = 4096; },
                                     [](ServeHeader& header) { header.text_bytes = 2; }}) {
    CHECK(errno_of(changed(refusal, 0, change)) == EPROTO);
  }
  ServeMessage endless = refusal;
  endless.text.assign(kMaxServeTextBytes + 1, 'x');
  CHECK(errno_of(encode(endless, 0)) == EPROTO);
}

TEST_CASE("a message of another version is told by its version", "[tools][serve]") {
  const auto packet = changed(ServeMessage{ServeKind::Attach}, 0,
                              [](ServeHeader& header) { header.version = kServeVersion + 1; });
  // Another version may have another header.
  for (const std::string& text : {packet, packet.substr(0, 8), packet + std::string(100, '\1')}) {
    const auto message = decode(text, 0);
    REQUIRE_FALSE(message);
    CHECK(message.error().errno_value == EPROTONOSUPPORT);
    const auto told = fmt::format("version {} of the protocol", kServeVersion + 1);
    CHECK(message.error().message.find(told) != std::string::npos);
  }
}

TEST_CASE("a reason that is too long or none still makes a message", "[tools][serve]") {
  const auto endless = message_of(ServeKind::Stuck, {ErrorCode::System, 99'999, std::string(10'000, 'x')});
  CHECK(errno_of(encode(endless, 0)) == 0);
  CHECK(errno_of(encode(message_of(ServeKind::Stuck, {ErrorCode::System, 0, ""}), 0)) == 0);
}

TEST_CASE("packets that are too long and descriptors that nobody wants are refused, and none leaks",
          "[tools][serve]") {
  const test::SocketPair pair;
  const UniqueFd descriptor = any_descriptor();
  const auto before = open_descriptors();
  REQUIRE(test::send_bytes(pair.one.get(), std::string(kMaxServePacketBytes + 1, 'x')));
  const auto endless = receive_message(pair.other.get(), Incoming::NoDescriptors);
  REQUIRE_FALSE(endless);
  CHECK(endless.error().errno_value == EPROTO);

  // The beginning of a packet that is too long may look like a whole packet.
  const Error why{ErrorCode::System, EIO, std::string(kMaxServeTextBytes, 'x')};
  REQUIRE(test::send_bytes(pair.one.get(), encode(message_of(ServeKind::Stuck, why), 0) + "x"));
  CHECK_FALSE(receive_message(pair.other.get(), Incoming::NoDescriptors));

  const std::vector<int> many(kMaxServeArenas + 2, descriptor.get());
  for (const std::size_t count : {std::size_t{1}, many.size()}) {
    for (const Incoming incoming : {Incoming::NoDescriptors, Incoming::Descriptors}) {
      // send_message() cannot send more descriptors than are allowed, so the packet is built as a hostile
      // peer would build it.
      std::string bytes = encode(ServeMessage{ServeKind::Attach}, count);
      std::vector<std::byte> control(CMSG_SPACE(count * sizeof(int)));
      iovec part{bytes.data(), bytes.size()};
      msghdr packet{};
      packet.msg_iov = &part;
      packet.msg_iovlen = 1;
      packet.msg_control = control.data();
      packet.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&packet);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(count * sizeof(int));
      std::memcpy(CMSG_DATA(rights), many.data(), count * sizeof(int));
      REQUIRE(::sendmsg(pair.one.get(), &packet, MSG_NOSIGNAL) > 0);
      const auto received = receive_message(pair.other.get(), incoming);
      REQUIRE_FALSE(received);
      CHECK(received.error().errno_value == EPROTO);
    }
  }
  CHECK(open_descriptors() == before);
}
