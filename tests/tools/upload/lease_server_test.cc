// The server against peers of every kind: those who hold leases, those who say nonsense, those who say
// nothing.
#include "tools/upload/lease_server.h"

#include <poll.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/catch.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/running_server.h"
#include "tests/support/served.h"
#include "tests/support/socket_pair.h"
#include "tests/support/temporary_directory.h"
#include "tools/upload/serve_client.h"

using namespace stfs;
using namespace stfs::upload;
using test::eventually;
using test::RunningServer;
using test::served_model;

namespace {

std::string content_of(const Lease& lease, std::size_t at) {
  const LeasedTensor& tensor = lease.tensors()[at];
  const auto bytes =
      lease.arenas()[tensor.arena]->host_bytes().subspan(tensor.place.offset, tensor.place.size_bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// What a peer is told next; fails the test where that takes too long.
std::optional<ReceivedMessage> next_message(int socket) {
  pollfd polled{socket, POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 20'000) == 1);
  auto received = receive_message(socket, Incoming::Descriptors);
  REQUIRE(received);
  return std::move(*received);
}

LeaseNews next_news(Lease& lease) {
  pollfd polled{lease.descriptor(), POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 20'000) == 1);
  auto news = lease.take_news();
  REQUIRE(news);
  return *news;
}

nlohmann::json report_of(const std::string& path) {
  const auto text = query_server(path);
  REQUIRE(text);
  return nlohmann::json::parse(*text);
}

}  // namespace

TEST_CASE("a client maps what the server holds", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  server.publish(served_model(1, "hello"));
  const auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
  CHECK(lease->generation() == 1);
  CHECK(lease->sources() == std::vector<std::string>{"/models/m.safetensors"});
  REQUIRE(lease->tensors().size() == 2);
  CHECK(lease->tensors()[0].name == "a");
  CHECK(lease->tensors()[1].dtype == Dtype::F32);
  CHECK(lease->tensors()[1].shape == std::vector<std::uint64_t>{2});
  CHECK(content_of(*lease, 0) == "hello");
  REQUIRE(lease->arenas().size() == 1);
  CHECK(lease->arenas()[0]->is_read_only());
  CHECK(lease->arenas()[0]->share().error().errno_value == ENOTSUP);
  CHECK(server.leases() == 1);
}

TEST_CASE("a lease lasts until the last of its arenas is gone", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  server.publish(served_model(1, "hello"));
  std::shared_ptr<Arena> arena;
  {
    const auto lease = Lease::attach(directory / "s");
    REQUIRE(lease);
    arena = lease->arenas()[0];
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(server.leases() == 1);
  CHECK(arena->host_bytes()[0] == std::byte{'h'});
  arena.reset();
  CHECK(eventually([&] { return server.leases() == 0; }));
}

TEST_CASE("those who hold a lease are told of a newer generation, once, and keep the old one",
          "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  std::weak_ptr<const ServedModel> first;
  {
    auto model = served_model(1, "old");
    first = model;
    server.publish(std::move(model));
  }
  auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
  REQUIRE(lease->take_news());
  CHECK(lease->take_news()->newer_generation == 0);
  server.publish(served_model(2, "new"));
  CHECK(next_news(*lease).newer_generation == 2);
  CHECK(lease->take_news()->newer_generation == 0);
  CHECK(content_of(*lease, 0) == "old");

  auto newer = lease->refresh();
  REQUIRE(newer);
  CHECK(newer->generation() == 2);
  CHECK(content_of(*newer, 0) == "new");
  CHECK(newer->take_news()->newer_generation == 0);
  CHECK(server.leases() == 2);

  const auto report = report_of(directory / "s");
  CHECK(report["generation"] == 2);
  REQUIRE(report["generations"].size() == 2);
  CHECK(report["generations"][0]["leases"] == 1);
  CHECK(report["leases"].size() == 2);
  CHECK(report["leases"][0]["pid"] == ::getpid());
  CHECK(report["size_bytes"] == 2 * (256 + 8));

  CHECK_FALSE(first.expired());
  { const auto gone = std::move(*lease); }
  CHECK(eventually([&] { return first.expired(); }));
  CHECK(report_of(directory / "s")["generations"].size() == 1);
}

TEST_CASE("generations that nobody has asked for are told as one", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  server.publish(served_model(1, "1"));
  auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
  for (std::uint64_t generation = 2; generation < 6; ++generation)
    server.publish(served_model(generation, "x"));
  CHECK(next_news(*lease).newer_generation == 5);
  CHECK(report_of(directory / "s")["generations"].size() == 2);
}

TEST_CASE("a newer generation is told in one message, however much else is asked", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  server.publish(served_model(1, "1"));
  const auto peer = connect_to_server(directory / "s");
  REQUIRE(peer);
  REQUIRE(send_message(peer->get(), ServeMessage{ServeKind::Attach}));
  CHECK(next_message(peer->get())->message.kind == ServeKind::Grant);
  server.publish(served_model(2, "2"));
  CHECK(next_message(peer->get())->message.kind == ServeKind::Newer);
  for (int round = 0; round < 3; ++round) report_of(directory / "s");
  const auto more = receive_message(peer->get(), Incoming::NoDescriptors);
  REQUIRE_FALSE(more);
  CHECK(more.error().errno_value == EAGAIN);
}

TEST_CASE("those who hold a lease are told why there is no newer generation, each reason once",
          "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  server.publish(served_model(1, "old"));
  auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
  const Error why{ErrorCode::OutOfMemory, ENOMEM, "cpu: 2 GiB are needed"};
  CHECK(server.with([&](LeaseServer& it) { return it.tell_stuck(why); }));
  CHECK_FALSE(server.with([&](LeaseServer& it) { return it.tell_stuck(why); }));
  CHECK(next_news(*lease).why_stuck == "cpu: 2 GiB are needed");
  CHECK(lease->take_news()->why_stuck.empty());
  CHECK(report_of(directory / "s")["stuck"] == "cpu: 2 GiB are needed");
  auto late = Lease::attach(directory / "s");
  REQUIRE(late);
  CHECK(late->take_news()->why_stuck.empty());
  CHECK(late->generation() == 1);

  server.publish(served_model(2, "new"));
  CHECK(report_of(directory / "s")["stuck"].is_null());
  CHECK(next_news(*lease).newer_generation == 2);
  CHECK(server.with([&](LeaseServer& it) { return it.tell_stuck(why); }));
  CHECK(next_news(*lease).why_stuck == "cpu: 2 GiB are needed");
}

TEST_CASE("who comes before the first generation waits for it, as long as it wants to", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  const auto hasty = Lease::attach(directory / "s", {.patience = std::chrono::milliseconds(50)});
  REQUIRE_FALSE(hasty);
  CHECK(hasty.error().errno_value == ETIMEDOUT);
  CHECK(hasty.error().message.find("still uploading") != std::string::npos);
  CHECK(report_of(directory / "s")["generation"] == 0);

  auto patient = std::async(std::launch::async, [&] { return Lease::attach(directory / "s"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.publish(served_model(1, "late"));
  const auto lease = patient.get();
  REQUIRE(lease);
  CHECK(content_of(*lease, 0) == "late");
}

TEST_CASE("who waits for a generation that will never be there is told why", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  auto patient = std::async(std::launch::async, [&] { return Lease::attach(directory / "s"); });
  const auto client = connect_to_server(directory / "s");
  REQUIRE(client);
  REQUIRE(send_message(client->get(), ServeMessage{ServeKind::Attach}));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  server.with([](LeaseServer& it) {
    it.give_up({ErrorCode::NotFound, ENOENT, "m.safetensors: no such file"});
  });
  const auto refusal = next_message(client->get());
  REQUIRE(refusal);
  CHECK(refusal->message.kind == ServeKind::Refusal);
  const auto lease = patient.get();
  REQUIRE_FALSE(lease);
  CHECK(lease.error().errno_value == ENOENT);
  CHECK(lease.error().message == (directory / "s") + ": m.safetensors: no such file");
}

TEST_CASE("a client sees that the server has ended, and keeps what it has mapped", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  server.publish(served_model(1, "hello"));
  auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
  auto waiting = Lease::attach(directory / "s");
  server.end();
  CHECK(next_news(*lease).is_server_gone);
  CHECK(lease->descriptor() == -1);
  CHECK(lease->take_news()->is_server_gone);
  CHECK(content_of(*lease, 0) == "hello");
  const auto again = lease->refresh();
  REQUIRE_FALSE(again);
  CHECK(again.error().errno_value == ENOENT);
}

TEST_CASE("no descriptor leaks, whatever becomes of the peers", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const auto before = test::open_descriptors();
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
      test::send_bytes(rude->get(), "nonsense");
      server.publish(served_model(static_cast<std::uint64_t>(round) + 2, "x"));
    }
    CHECK(eventually([&] { return server.leases() == 0; }));
  }
  CHECK(test::open_descriptors() == before);
}

TEST_CASE("a report that is asked for in the moment in which leases end is whole", "[tools][serve]") {
  const test::TemporaryDirectory directory;
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
  // Both in one round.
  REQUIRE(server.serve_once(std::chrono::seconds(1)));
  CHECK(server.lease_count() == 1);
  const auto report = next_message(asking.get());
  REQUIRE(report);
  CHECK(report->message.kind == ServeKind::Report);
}

TEST_CASE("peers that talk nonsense are refused, and nobody else is disturbed", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  server.publish(served_model(1, "hello"));
  auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
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
    REQUIRE(test::send_bytes(peer->get(), packet));
    const auto answer = next_message(peer->get());
    REQUIRE(answer);
    CHECK(answer->message.kind == ServeKind::Refusal);
    CHECK(answer->message.errno_value == (packet == other_version ? EPROTONOSUPPORT : EPROTO));
    CHECK_FALSE(next_message(peer->get()));
  }
  // A lease is not asked for twice.
  const auto peer = connect_to_server(directory / "s");
  REQUIRE(peer);
  REQUIRE(test::send_bytes(peer->get(), attach));
  CHECK(next_message(peer->get())->message.kind == ServeKind::Grant);
  REQUIRE(test::send_bytes(peer->get(), attach));
  CHECK(next_message(peer->get())->message.kind == ServeKind::Refusal);
  CHECK(eventually([&] { return server.leases() == 1; }));
  server.publish(served_model(2, "new"));
  CHECK(next_news(*lease).newer_generation == 2);
}

TEST_CASE("a peer that says nothing is dropped, and makes nobody wait", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  LeaseServerOptions options;
  options.greeting_patience = std::chrono::milliseconds(300);
  RunningServer server(directory / "s", options);
  server.publish(served_model(1, "hello"));
  const auto silent = connect_to_server(directory / "s");
  REQUIRE(silent);
  CHECK(Lease::attach(directory / "s", {.patience = std::chrono::milliseconds(250)}));
  CHECK_FALSE(next_message(silent->get()));
}

TEST_CASE("a peer that reads nothing costs nothing, and makes nobody wait", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  server.publish(served_model(1, "1"));
  auto deaf = Lease::attach(directory / "s");
  auto lease = Lease::attach(directory / "s");
  REQUIRE(deaf);
  REQUIRE(lease);
  // More than its socket takes: what it missed is told as one when it reads.
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

TEST_CASE("more connections than allowed are refused, and taken again when others have gone",
          "[tools][serve]") {
  const test::TemporaryDirectory directory;
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

TEST_CASE("a crowd of silent peers does not keep others out for longer than they may be silent",
          "[tools][serve]") {
  const test::TemporaryDirectory directory;
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

TEST_CASE("random packets never stop the server", "[tools][serve][fuzz]") {
  const test::TemporaryDirectory directory;
  RunningServer server(directory / "s");
  server.publish(served_model(1, "hello"));
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
      test::send_bytes(peer->get(), packet);
    }
  }
  const auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
  CHECK(content_of(*lease, 0) == "hello");
  CHECK(eventually([&] { return server.leases() == 1; }));
}
