// The server against bad peers: peers that send nonsense, peers that send nothing, and too many peers.
#include <random>

#include "tests/support/catch.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/socket_pair.h"
#include "tests/tools/serve/leased_server.h"
#include "tools/serve/lease_server.h"

using namespace stfs;
using namespace stfs::serve;
using namespace stfs::test;

TEST_CASE("no descriptor leaks, whatever becomes of the peers", "[tools][serve]") {
  const TemporaryDirectory directory;
  const auto before = open_descriptors();
  {
    RunningServer server(directory / "s");
    server.publish(served_model(1, "hello"));
    for (int round = 0; round < 20; ++round) {
      const auto lease = Lease::attach(directory / "s");
      REQUIRE(lease);
      const auto report = query_server(directory / "s");
      REQUIRE(report);
      const auto rude = connect_to_server(directory / "s");
      REQUIRE(rude);
      send_bytes(rude->get(), "nonsense");
      server.publish(served_model(static_cast<std::uint64_t>(round) + 2, "x"));
    }
    CHECK(eventually([&] { return server.leases() == 0; }));
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a report that is asked for in the moment in which leases end is whole", "[tools][serve]") {
  const TemporaryDirectory directory;
  auto socket = ServeSocket::listen(directory / "s");
  REQUIRE(socket);
  LeaseServer server(std::move(*socket), {});
  server.publish(served_model(1, "hello"));
  const auto connect = [&](ServeKind request) {
    auto peer = connect_to_server(directory / "s");
    REQUIRE(peer);
    REQUIRE(send_message(peer->get(), ServeMessage{request}));
    return std::move(*peer);
  };
  std::vector<UniqueFd> leases;
  for (int at = 0; at < 3; ++at) leases.push_back(connect(ServeKind::Attach));
  REQUIRE(server.serve_once(std::chrono::seconds(1)));
  CHECK(server.lease_count() == 3);
  leases.erase(leases.begin(), leases.begin() + 2);
  const UniqueFd asking = connect(ServeKind::Query);
  // One round serves both.
  REQUIRE(server.serve_once(std::chrono::seconds(1)));
  CHECK(server.lease_count() == 1);
  const auto report = next_message(asking.get());
  REQUIRE(report);
  CHECK(report->message.kind == ServeKind::Report);
}

TEST_CASE_METHOD(LeasedServer, "peers that talk nonsense are refused, and nobody else is disturbed",
                 "[tools][serve]") {
  const std::string attach = encode(ServeMessage{ServeKind::Attach}, 0);
  ServeMessage newer{ServeKind::Newer};
  newer.generation = 9;
  std::string other_version = attach;
  other_version[4] = 9;
  for (const std::string& packet :
       {std::string("x"), attach.substr(0, 39), attach + "x", encode(newer, 0), other_version,
        std::string(kMaxServePacketBytes, '\0'), std::string(100'000, 'x')}) {
    const auto peer = connect_to_server(directory / "s");
    REQUIRE(peer);
    REQUIRE(send_bytes(peer->get(), packet));
    const auto answer = next_message(peer->get());
    REQUIRE(answer);
    CHECK(answer->message.kind == ServeKind::Refusal);
    CHECK(answer->message.errno_value == (packet == other_version ? EPROTONOSUPPORT : EPROTO));
    CHECK_FALSE(next_message(peer->get()));
  }
  // A peer must not ask for a lease twice.
  const auto peer = connect_to_server(directory / "s");
  REQUIRE(peer);
  REQUIRE(send_bytes(peer->get(), attach));
  CHECK(next_message(peer->get())->message.kind == ServeKind::Grant);
  REQUIRE(send_bytes(peer->get(), attach));
  CHECK(next_message(peer->get())->message.kind == ServeKind::Refusal);
  CHECK(eventually([&] { return server.leases() == 1; }));
  server.publish(served_model(2, "new"));
  CHECK(next_news(*lease).newer_generation == 2);
}

TEST_CASE("a peer that says nothing is dropped, and makes nobody wait", "[tools][serve]") {
  const TemporaryDirectory directory;
  LeaseServerOptions options;
  options.greeting_patience = std::chrono::milliseconds(1500);
  RunningServer server(directory / "s", options);
  server.publish(served_model(1, "hello"));
  const auto silent = connect_to_server(directory / "s");
  REQUIRE(silent);
  CHECK(Lease::attach(directory / "s", {.patience = std::chrono::milliseconds(1400)}));
  CHECK_FALSE(next_message(silent->get()));
}

TEST_CASE_METHOD(HelloServer, "a peer that reads nothing costs nothing, and makes nobody wait",
                 "[tools][serve]") {
  auto deaf = Lease::attach(directory / "s");
  auto lease = Lease::attach(directory / "s");
  REQUIRE(deaf);
  REQUIRE(lease);
  // More news than the peer's socket takes: the server sends the missed news as one when the peer reads.
  constexpr std::uint64_t kGenerations = 3000;
  for (std::uint64_t generation = 2; generation <= kGenerations; ++generation) {
    server.publish(served_model(generation, "x"));
    if (generation % 100 == 0) CHECK(next_news(*lease).newer_generation == generation);
  }
  std::uint64_t newest = 0;
  CHECK(eventually([&] {
    newest = std::max(newest, deaf->take_news()->newer_generation);
    return newest == kGenerations;
  }));
}

TEST_CASE_METHOD(HelloServer, "a report that is longer than a socket takes arrives whole", "[tools][serve]") {
  const std::string reason(1'000'000, 'x');
  server.with([&](LeaseServer& it) { return it.tell_stuck({ErrorCode::System, EIO, reason}); });
  CHECK(report_of(directory / "s")["stuck"] == reason);
  server.with([&](LeaseServer& it) {
    return it.tell_stuck({ErrorCode::System, EIO, std::string(kMaxServeReportBytes, 'x')});
  });
  const auto refused = query_server(directory / "s");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EMSGSIZE);
}

TEST_CASE("who asks for a long report and does not read it is dropped", "[tools][serve]") {
  const TemporaryDirectory directory;
  LeaseServerOptions options;
  options.greeting_patience = std::chrono::milliseconds(1500);
  RunningServer server(directory / "s", options);
  server.publish(served_model(1, "hello"));
  server.with([&](LeaseServer& it) {
    return it.tell_stuck({ErrorCode::System, EIO, std::string(1'000'000, 'x')});
  });
  const auto deaf = connect_to_server(directory / "s");
  REQUIRE(deaf);
  REQUIRE(send_message(deaf->get(), ServeMessage{ServeKind::Query}));
  pollfd polled{deaf->get(), 0, 0};
  REQUIRE(::poll(&polled, 1, 20'000) == 1);
  CHECK((polled.revents & POLLHUP) != 0);
}

TEST_CASE("more connections than allowed are refused, and taken again when others have gone",
          "[tools][serve]") {
  const TemporaryDirectory directory;
  LeaseServerOptions options;
  options.max_connections = 3;
  RunningServer server(directory / "s", options);
  server.publish(served_model(1, "x"));
  std::vector<Lease> leases;
  for (int at = 0; at < 3; ++at) {
    auto lease = Lease::attach(directory / "s");
    REQUIRE(lease);
    leases.push_back(std::move(*lease));
  }
  const auto refused = Lease::attach(directory / "s");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EBUSY);
  leases.pop_back();
  CHECK(eventually([&] { return Lease::attach(directory / "s").has_value(); }));
}

TEST_CASE("peers that are gone already do not keep others out", "[tools][serve]") {
  const TemporaryDirectory directory;
  auto socket = ServeSocket::listen(directory / "s");
  REQUIRE(socket);
  LeaseServer server(std::move(*socket), {.max_connections = 4});
  server.publish(served_model(1, "hello"));
  // All connections wait in one queue before the server looks at it. The dead ones alone exceed its limit.
  for (int at = 0; at < 9; ++at) {
    const auto gone = connect_to_server(directory / "s");
    REQUIRE(gone);
    if (at % 2 == 0) send_bytes(gone->get(), "nonsense");
  }
  const auto peer = connect_to_server(directory / "s");
  REQUIRE(peer);
  REQUIRE(send_message(peer->get(), ServeMessage{ServeKind::Attach}));
  for (int round = 0; round < 4; ++round) REQUIRE(server.serve_once(std::chrono::seconds(1)));
  const auto granted = next_message(peer->get());
  REQUIRE(granted);
  CHECK(granted->message.kind == ServeKind::Grant);
  CHECK(server.lease_count() == 1);
}

TEST_CASE("a crowd of silent peers does not keep others out for longer than they may be silent",
          "[tools][serve]") {
  const TemporaryDirectory directory;
  LeaseServerOptions options;
  options.max_connections = 8;
  options.greeting_patience = std::chrono::milliseconds(300);
  RunningServer server(directory / "s", options);
  server.publish(served_model(1, "x"));
  std::vector<UniqueFd> silent;
  for (int at = 0; at < 60; ++at) {
    if (auto socket = connect_to_server(directory / "s")) silent.push_back(std::move(*socket));
  }
  CHECK(eventually([&] { return Lease::attach(directory / "s").has_value(); }));
}

TEST_CASE_METHOD(HelloServer, "random packets never stop the server", "[tools][serve][fuzz]") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 3000; ++round) {
    const auto peer = connect_to_server(directory / "s");
    if (!peer) {
      REQUIRE(peer.error().errno_value == EAGAIN);
      continue;
    }
    for (std::uint64_t packets = random() % 4; packets > 0; --packets) {
      std::string packet = encode(ServeMessage{static_cast<ServeKind>(random() % 8)}, random() % 2);
      for (std::uint64_t flips = random() % 3; flips > 0; --flips) {
        packet[random() % packet.size()] = static_cast<char>(random());
      }
      send_bytes(peer->get(), packet);
    }
  }
  const auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
  CHECK(content_of(*lease, 0) == "hello");
  CHECK(eventually([&] { return server.leases() == 1; }));
}
