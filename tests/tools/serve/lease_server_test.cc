// The server and the holders of leases: the memory that they map, their messages, and the end of a lease.
#include "tools/serve/lease_server.h"

#include <future>
#include <memory>
#include <thread>

#include "tests/support/catch.h"
#include "tests/tools/serve/leased_server.h"

using namespace stfs;
using namespace stfs::serve;
using namespace stfs::test;

TEST_CASE_METHOD(LeasedServer, "a client maps what the server holds", "[tools][serve]") {
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

TEST_CASE_METHOD(HelloServer, "a lease lasts until the last of its arenas is gone", "[tools][serve]") {
  std::shared_ptr<device::Arena> arena;
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
  const TemporaryDirectory directory;
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

  auto newer = Lease::attach(directory / "s");
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

TEST_CASE_METHOD(LeasedServer, "generations that nobody has asked for are told as one", "[tools][serve]") {
  for (std::uint64_t generation = 2; generation < 6; ++generation)
    server.publish(served_model(generation, "x"));
  CHECK(next_news(*lease).newer_generation == 5);
  CHECK(report_of(directory / "s")["generations"].size() == 2);
}

TEST_CASE_METHOD(HelloServer, "a newer generation is told in one message, however much else is asked",
                 "[tools][serve]") {
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

TEST_CASE_METHOD(LeasedServer,
                 "those who hold a lease are told why there is no newer generation, each reason once",
                 "[tools][serve]") {
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
  const TemporaryDirectory directory;
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
  const TemporaryDirectory directory;
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

TEST_CASE_METHOD(LeasedServer, "a client sees that the server has ended, and keeps what it has mapped",
                 "[tools][serve]") {
  auto waiting = Lease::attach(directory / "s");
  server.end();
  CHECK(next_news(*lease).is_server_gone);
  CHECK(lease->descriptor() == -1);
  CHECK(lease->take_news()->is_server_gone);
  CHECK(content_of(*lease, 0) == "hello");
  const auto again = Lease::attach(directory / "s");
  REQUIRE_FALSE(again);
  CHECK(again.error().errno_value == ENOENT);
}
