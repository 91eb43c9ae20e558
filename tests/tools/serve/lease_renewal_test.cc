// Leases that are exchanged for a newer generation: shared tensors keep their addresses, and the memory of
// other leases stays.
#include <future>
#include <thread>

#include "tests/support/catch.h"
#include "tests/tools/serve/leased_server.h"

using namespace stfs;
using namespace stfs::serve;
using namespace stfs::test;

namespace {

using std::chrono::milliseconds;
constexpr std::chrono::seconds kLong{20};

/// Generation 1 is "hello"; generations after it change the tensor "a" alone.
struct Generations {
  Generations() { server.publish(served(newest, "000001")); }

  void publish(const std::string& content, const std::string& version = "") {
    newest = with_other_a(newest, content);
    server.publish(served(newest, version));
  }

  TemporaryDirectory directory;
  RunningServer server{directory / "s"};
  Generation newest = generation_of(resident("hello"), 1);
};

const void* address_of(const Lease& lease, std::size_t at) {
  const LeasedTensor& tensor = lease.tensors()[at];
  return lease.arenas()[tensor.arena]->host_bytes().data() + tensor.place.offset;
}

}  // namespace

TEST_CASE_METHOD(Generations, "a renewed lease has the new bytes, and the old addresses of all others",
                 "[tools][serve]") {
  auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
  CHECK(lease->version() == "000001");
  CHECK(lease->changed().empty());
  const std::shared_ptr<device::Arena> held = lease->arenas()[lease->tensors()[0].arena];
  const void* const a = address_of(*lease, 0);
  const void* const b = address_of(*lease, 1);
  publish("again", "000002");
  CHECK(lease->wait_newer(kLong).value() == 2);
  REQUIRE(lease->renew(kLong));
  CHECK(lease->generation() == 2);
  CHECK(lease->version() == "000002");
  CHECK(lease->changed() == std::vector<std::uint64_t>{0});
  CHECK(content_of(*lease, 0) == "again");
  CHECK(address_of(*lease, 1) == b);
  CHECK(address_of(*lease, 0) != a);
  // Tensors that the caller took before the renewal are unchanged.
  CHECK(std::memcmp(a, "hello", 5) == 0);
  CHECK(held->host_bytes()[0] == std::byte{'h'});
  // News about the lease's present generation are dropped.
  CHECK(lease->take_news()->newer_generation == 0);
  CHECK(lease->wait_newer(milliseconds(1)).value() == 0);
  REQUIRE(lease->renew(kLong));
  CHECK(lease->generation() == 2);
  CHECK(lease->changed().empty());
  CHECK(server.leases() == 1);
}

TEST_CASE_METHOD(Generations, "generations that were passed over count as one change", "[tools][serve]") {
  auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
  for (const char* content : {"two..", "three", "four."}) publish(content);
  REQUIRE(lease->renew(kLong));
  CHECK(lease->generation() == 4);
  CHECK(lease->changed() == std::vector<std::uint64_t>{0});
  CHECK(content_of(*lease, 0) == "four.");
  server.publish(served(generation_of(resident("other"), 5)));
  REQUIRE(lease->renew(kLong));
  CHECK(lease->changed() == std::vector<std::uint64_t>{0, 1});
}

TEST_CASE_METHOD(Generations, "a generation's own memory is freed with the last lease that needs it",
                 "[tools][serve]") {
  std::weak_ptr<device::Arena> own;
  auto keeper = Lease::attach(directory / "s");
  publish("again");
  own = newest.layout.arenas.back().arena;
  auto lease = Lease::attach(directory / "s");
  auto other = Lease::attach(directory / "s");
  REQUIRE((lease && other && keeper));
  publish("third");
  REQUIRE(lease->renew(kLong));
  const auto report = report_of(directory / "s");
  REQUIRE(report["generations"].size() == 3);
  CHECK(report["generations"][1]["leases"] == 1);
  CHECK(report["generations"][2]["own_bytes"] == 5);
  CHECK(report["generations"][2]["shared_bytes"] == 264);
  CHECK(report["generations"][2]["arenas"][0]["shared"] == true);
  CHECK(report["size_bytes"] == 264 + 5 + 5);
  CHECK_FALSE(own.expired());
  CHECK(content_of(*other, 0) == "again");
  { const auto gone = std::move(*other); }
  CHECK(eventually([&] { return own.expired(); }));
  CHECK(content_of(*keeper, 0) == "hello");
  CHECK(content_of(*lease, 0) == "third");
}

TEST_CASE_METHOD(Generations, "a wait ends with a generation, with its time, or with the server",
                 "[tools][serve]") {
  auto lease = Lease::attach(directory / "s");
  REQUIRE(lease);
  CHECK(lease->wait_newer(milliseconds(5)).value() == 0);
  auto waiting = std::async(std::launch::async, [&] { return lease->wait_newer(kLong); });
  std::this_thread::sleep_for(milliseconds(20));
  publish("again");
  CHECK(waiting.get().value() == 2);
  CHECK(lease->take_news()->newer_generation == 2);  // a wait takes no news away
  CHECK(lease->wait_newer(milliseconds(0)).value() == 2);
  server.end();
  CHECK(lease->renew(kLong).error().errno_value == ECONNRESET);
  CHECK(lease->take_news()->is_server_gone);
  CHECK(lease->generation() == 1);
  CHECK(content_of(*lease, 0) == "hello");
}

TEST_CASE_METHOD(Generations, "who renews twice at once, or without a lease, is refused", "[tools][serve]") {
  const auto peer = connect_to_server(directory / "s");
  REQUIRE(peer);
  REQUIRE(send_message(peer->get(), ServeMessage{ServeKind::Renew}));
  CHECK(next_message(peer->get())->message.kind == ServeKind::Refusal);
  CHECK_FALSE(next_message(peer->get()));

  const auto holder = connect_to_server(directory / "s");
  REQUIRE(holder);
  REQUIRE(send_message(holder->get(), ServeMessage{ServeKind::Attach}));
  CHECK(next_message(holder->get())->descriptors.size() == 2);
  // The peer has the newest generation already, so there is nothing to map.
  REQUIRE(send_message(holder->get(), ServeMessage{ServeKind::Renew}));
  const auto same = next_message(holder->get());
  CHECK(same->message.kind == ServeKind::Grant);
  CHECK(same->descriptors.size() == 1);
  publish("again");
  CHECK(next_message(holder->get())->message.kind == ServeKind::Newer);
  REQUIRE(send_message(holder->get(), ServeMessage{ServeKind::Renew}));
  CHECK(next_message(holder->get())->descriptors.size() == 2);  // the manifest, and the new arena
}
