// Two writers of one archive, each with a lane journal: no update is lost, and no writer waits for long.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "tests/core/lane_writer.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Two writers of one archive, each with its own journal.
struct TwoWriters {
  TwoWriters() {
    one.warm_up();
    two.warm_up();
  }

  Place place;
  Writer one{place.path};
  Writer two{place.path};
};

}  // namespace

TEST_CASE_METHOD(TwoWriters, "two writers of one tensor who settle in between lose no update",
                 "[core][transaction][lane_journal]") {
  CHECK(place.names().size() == 3);
  for (std::uint64_t round = 0; round < 8; ++round) {
    CAPTURE(round);
    Writer& writer = round % 2 == 0 ? one : two;
    Writer& other = round % 2 == 0 ? two : one;
    const std::string bytes = "update " + std::to_string(round);
    REQUIRE(writer.put("a", bytes, 100 * round));  // all in one block
    place.expect(bytes, 100 * round);
    CHECK(place.content() == place.expected);
    CHECK(writer.read("a") == other.read("a"));
    REQUIRE(writer.lane_journal().settle(Durability::Power));
  }
}

TEST_CASE_METHOD(TwoWriters, "who does not settle keeps others waiting for their patience, and no longer",
                 "[core][transaction][lane_journal]") {
  REQUIRE(one.put("a", "one"));
  place.expect("one", 0);
  REQUIRE(two.put("b", "elsewhere"));  // other blocks do not conflict
  place.expect("elsewhere", 16'384);
  const auto began = std::chrono::steady_clock::now();
  two.write("a", "two", 100);
  const auto refused = two.commit();
  const auto waited = std::chrono::steady_clock::now() - began;
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::Busy);
  CHECK(refused.error().errno_value == EBUSY);
  CHECK(refused.error().message.find(place.path) != std::string::npos);
  CHECK(refused.error().message.find("has not settled") != std::string::npos);
  CHECK(waited >= two.options.lock_patience);
  CHECK(waited < two.options.lock_patience + std::chrono::seconds(3));
  CHECK(place.content() == place.expected);
  CHECK(two.lane_journal().is_settled());  // the other writer may be waiting for this one in the same way
  // The change is still staged. Its commit succeeds when the other writer has settled.
  REQUIRE(one.lane_journal().settle(Durability::Power));
  REQUIRE(two.commit());
  place.expect("two", 100);
  CHECK(place.content() == place.expected);
}

TEST_CASE_METHOD(TwoWriters, "who waits goes on as soon as the other settles",
                 "[core][transaction][lane_journal]") {
  two.options.lock_patience = std::chrono::seconds(20);
  REQUIRE(one.put("a", "one"));
  place.expect("one", 0);
  std::thread janitor([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    static_cast<void>(one.lane_journal().settle(Durability::Power));
  });
  const auto began = std::chrono::steady_clock::now();
  const auto committed = two.put("a", "two", 100);
  const auto waited = std::chrono::steady_clock::now() - began;
  janitor.join();
  REQUIRE(committed);
  place.expect("two", 100);
  CHECK(place.content() == place.expected);
  CHECK(waited < std::chrono::seconds(10));
}

TEST_CASE_METHOD(
    TwoWriters,
    "two who commit to the same bytes at the same time lose no update and wait for nobody for long",
    "[core][transaction][lane_journal]") {
  constexpr std::uint64_t kRounds = 40;
  std::atomic<int> failures = 0;
  std::atomic<std::int64_t> longest_ms = 0;
  const auto write = [&](Writer& writer, std::uint64_t first, char fill) {
    writer.options.lock_patience = std::chrono::seconds(20);
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const auto began = std::chrono::steady_clock::now();
      if (!writer.put("a", std::string(10, fill), first + 20 * round)) ++failures;
      const auto waited =
          std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
      longest_ms = std::max(longest_ms.load(), waited.count());
    }
    if (!writer.lane_journal().settle(Durability::Power)) ++failures;
  };
  std::thread other([&] { write(two, 10, '2'); });
  write(one, 0, '1');
  other.join();
  for (std::uint64_t round = 0; round < kRounds; ++round)
    place.expect(std::string(10, '1') + std::string(10, '2'), 20 * round);
  CHECK(failures == 0);
  CHECK(place.content() == place.expected);
  CHECK(longest_ms < 10'000);
}
