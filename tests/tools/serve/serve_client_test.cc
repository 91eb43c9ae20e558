// Clients of stfs serve against servers that send wrong answers.
#include "tools/serve/serve_client.h"

#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/socket_pair.h"
#include "tests/support/temporary_directory.h"
#include "tests/tools/serve/leased_server.h"
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

/// A server that grants the lease of another server, and then sends messages without end. It answers nothing.
class FloodingServer {
 public:
  explicit FloodingServer(const HelloServer& honest) : path_(honest.directory / "flood") {
    auto socket = ServeSocket::listen(path_);
    REQUIRE(socket);
    socket_.emplace(std::move(*socket));
    granting_ = std::thread([this, place = honest.directory / "s"] { grant(place); });
  }
  ~FloodingServer() {
    is_over_ = true;
    granting_.join();
    for (std::thread& sender : senders_) sender.join();
  }
  FloodingServer(const FloodingServer&) = delete;
  FloodingServer& operator=(const FloodingServer&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  std::atomic<std::uint64_t> announced = 0;  // a generation; 0: none

 private:
  void grant(const std::string& place) {
    pollfd polled{socket_->descriptor(), POLLIN, 0};
    if (::poll(&polled, 1, 20'000) != 1) return;
    auto peer = socket_->accept();
    const auto honest = connect_to_server(place);
    if (!peer || !*peer || !honest || !send_message(honest->get(), ServeMessage{ServeKind::Attach})) return;
    polled.fd = honest->get();
    if (::poll(&polled, 1, 20'000) != 1) return;
    const auto granted = receive_message(honest->get(), Incoming::Descriptors);
    if (!granted || !*granted) return;
    std::vector<int> descriptors;
    for (const UniqueFd& each : (*granted)->descriptors) descriptors.push_back(each.get());
    peer_ = std::move((*peer)->socket);
    if (!send_message(peer_.get(), (*granted)->message, descriptors)) return;
    constexpr int kSenders = 4;
    for (int at = 0; at < kSenders; ++at) senders_.emplace_back([this] { flood(); });
  }

  void flood() {
    const ServeMessage stuck = message_of(ServeKind::Stuck, {ErrorCode::System, EIO, "why"});
    while (!is_over_) {
      ServeMessage newer{ServeKind::Newer};
      newer.generation = announced;
      static_cast<void>(send_message(peer_.get(), announced == 0 ? stuck : newer));
    }
  }

  const std::string path_;
  std::optional<ServeSocket> socket_;
  UniqueFd peer_;
  std::atomic<bool> is_over_ = false;
  std::thread granting_;
  std::vector<std::thread> senders_;
};

int errno_of_answer(const Result<std::string>& answer) {
  return answer ? 0 : answer.error().errno_value;
}

}  // namespace

TEST_CASE("a client waits for its place in a crowd as long as it was told to", "[tools][serve]") {
  const TemporaryDirectory directory;
  std::optional<ServeSocket> socket = ServeSocket::listen(directory / "s").value();
  std::vector<UniqueFd> crowd;
  int why = 0;
  while (why == 0) {
    auto client = connect_to_server(directory / "s");
    if (client) crowd.push_back(std::move(*client));
    if (!client) why = client.error().errno_value;
  }
  REQUIRE(why == EAGAIN);
  const auto attach = [&](std::chrono::milliseconds patience) {
    return std::async(std::launch::async,
                      [&, patience] { return Lease::attach(directory / "s", {.patience = patience}); });
  };
  auto impatient = attach(std::chrono::milliseconds(0));
  auto patient = attach(std::chrono::minutes(1));
  const bool has_ended = impatient.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  CHECK(patient.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  socket.reset();  // ends each client that still waits
  CHECK(has_ended);
  CHECK(impatient.get().error().errno_value == EAGAIN);
  CHECK(patient.get().error().errno_value != EAGAIN);
}

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

TEST_CASE("a server that sends messages without end extends no deadline", "[tools][serve]") {
  const HelloServer honest;
  FloodingServer server(honest);
  auto lease = Lease::attach(server.path());
  REQUIRE(lease);
  constexpr std::chrono::milliseconds kShort{20};
  CHECK(lease->wait_newer(kShort).value() == 0);
  CHECK(lease->take_news());
  server.announced = 2;
  CHECK(lease->wait_newer(std::chrono::seconds(20)).value() == 2);
  const auto renewed = lease->renew(kShort);
  REQUIRE_FALSE(renewed);
  CHECK(renewed.error().errno_value == ETIMEDOUT);
  CHECK(lease->generation() == 1);
}

TEST_CASE("a server that sends empty parts of a report is refused", "[tools][serve]") {
  CHECK(errno_of_answer(query_answered_with(
            {{report_part("{", 2)}, {report_part("", 2)}, {report_part("}", 2)}})) == EPROTO);
}
