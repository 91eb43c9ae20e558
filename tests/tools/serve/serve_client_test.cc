// Clients of stfs serve against servers that send wrong answers.
#include "tools/serve/serve_client.h"

#include <fcntl.h>
#include <poll.h>

#include <future>

#include "tests/support/catch.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/socket_pair.h"
#include "tests/support/temporary_directory.h"
#include "tools/serve/serve_message.h"
#include "tools/serve/serve_socket.h"

using namespace stfs;
using namespace stfs::serve;
using namespace stfs::test;

namespace {

struct Packet {
  ServeMessage message;
  std::vector<int> descriptors = {};
};

ServeMessage report_part(std::string part, std::uint64_t size_bytes) {
  ServeMessage message{ServeKind::Report};
  message.text = std::move(part);
  message.document_bytes = size_bytes;
  return message;
}

/// The result of a client that asks a server for its status. The server answers with these packets, then
/// ends.
Result<std::string> query_answered_with(const std::vector<Packet>& packets) {
  const TemporaryDirectory directory;
  auto socket = ServeSocket::listen(directory / "s");
  REQUIRE(socket);
  auto asked = std::async(std::launch::async, [&] { return query_server(directory / "s"); });
  pollfd polled{socket->descriptor(), POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 20'000) == 1);
  {
    const auto peer = socket->accept();
    REQUIRE(peer);
    REQUIRE(*peer);
    // The server reads the request first, because a connection that ends with unread packets gives no answer.
    polled.fd = (*peer)->socket.get();
    REQUIRE(::poll(&polled, 1, 20'000) == 1);
    REQUIRE(receive_message(polled.fd, Incoming::NoDescriptors));
    for (const Packet& packet : packets)
      REQUIRE(send_message((*peer)->socket.get(), packet.message, packet.descriptors));
  }
  return asked.get();
}

int errno_of_answer(const Result<std::string>& answer) {
  return answer ? 0 : answer.error().errno_value;
}

}  // namespace

TEST_CASE("a report in parts is put together", "[tools][serve]") {
  CHECK(query_answered_with({{report_part("{}", 2)}}).value() == "{}");
  CHECK(query_answered_with({{report_part("{\"a", 7)}, {report_part("\":1}", 7)}}).value() == "{\"a\":1}");
}

TEST_CASE("a report of another size than its server says is refused", "[tools][serve]") {
  CHECK(errno_of_answer(query_answered_with({{report_part("{", 2)}})) == ECONNRESET);
  CHECK(errno_of_answer(query_answered_with({{report_part("{}x", 2)}})) == EPROTO);
  CHECK(errno_of_answer(query_answered_with({{report_part("{", 2)}, {report_part("}x", 2)}})) == EPROTO);
  CHECK(errno_of_answer(query_answered_with({{report_part("{}", kMaxServeReportBytes + 1)}})) == EPROTO);
  CHECK(errno_of_answer(query_answered_with(
            {{report_part("{", 2)}, {message_of(ServeKind::Refusal, {ErrorCode::Busy, EBUSY, "why"})}})) ==
        EBUSY);
}

TEST_CASE("a descriptor that comes with a report never reaches the client's process", "[tools][serve]") {
  // A process that closes any descriptor of a file loses its locks on the file. The lock is lost if the
  // client's process ever had the descriptor.
  const TemporaryDirectory directory;
  const UniqueFd held(::open((directory / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  REQUIRE(::fcntl(held.get(), F_SETLK, &lock) == 0);
  const auto before = open_descriptors();

  CHECK(errno_of_answer(query_answered_with({{report_part("{}", 2), {held.get()}}})) == EPROTO);
  CHECK(errno_of_answer(query_answered_with({{report_part("{", 2)}, {report_part("}", 2), {held.get()}}})) ==
        EPROTO);

  CHECK(open_descriptors() == before);
  struct flock other {};
  other.l_type = F_WRLCK;
  const UniqueFd another(::open((directory / "f").c_str(), O_RDWR | O_CLOEXEC));
  CHECK(::fcntl(another.get(), F_OFD_GETLK, &other) == 0);
  CHECK(other.l_type == F_WRLCK);
}
