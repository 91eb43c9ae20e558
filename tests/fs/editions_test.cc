// File systems end when nobody holds them any more, not earlier, and their numbers are given again.
#include "fs/model/editions.h"

#include <atomic>
#include <thread>
#include <vector>

#include "tests/fs/driven_model.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

std::unique_ptr<Filesystem> a_filesystem() {
  return DrivenModel().take();
}

}  // namespace

TEST_CASE("a file system is found by its number until it was let go of", "[fs][editions]") {
  Editions editions(1, 3);
  CHECK_FALSE(editions.pin(0));
  CHECK_FALSE(editions.pin(1));
  REQUIRE(editions.add(a_filesystem()) == 1U);
  CHECK(editions.pin(1).number() == 1);
  CHECK(editions.all().size() == 1);
  CHECK(editions.take_ended().empty());
  editions.let_go(1, 1);
  CHECK_FALSE(editions.pin(1));
  CHECK(editions.all().empty());
  CHECK(editions.take_ended().size() == 1);
  CHECK(editions.take_ended().empty());
}

TEST_CASE("look-ups and calls hold a file system", "[fs][editions]") {
  Editions editions(0, 3);
  REQUIRE(editions.add(a_filesystem()));
  {
    const Editions::Pin pin = editions.pin(0);
    pin.note_lookup(kRootIno);
    pin.note_lookup(kRootIno);
    editions.let_go(0, 1);  // who has added it
    editions.let_go(0, 2);
    CHECK(editions.take_ended().empty());
    CHECK(pin->attributes(kRootIno));
  }
  CHECK(editions.take_ended().size() == 1);
}

TEST_CASE("a number is given again, and not before its file system has ended", "[fs][editions]") {
  Editions editions(5, 2);
  REQUIRE(editions.add(a_filesystem()) == 5U);
  REQUIRE(editions.add(a_filesystem()) == 6U);
  const auto refused = editions.add(a_filesystem());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == ENFILE);
  editions.let_go(5, 1);
  CHECK(editions.add(a_filesystem()) == 5U);
  CHECK(editions.take_ended().size() == 1);
}

TEST_CASE("threads that come and go never find a file system that has ended", "[fs][editions]") {
  constexpr int kReplacements = 300;
  Editions editions(0, 4);
  std::atomic<Editions::Number> current = editions.add(a_filesystem()).value();
  std::atomic<bool> is_over = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      while (!is_over) {
        const Editions::Pin pin = editions.pin(current);
        if (!pin) continue;  // replaced in between
        pin.note_lookup(kRootIno);
        if (!pin->attributes(kRootIno)) ++wrong;
        editions.let_go(pin.number(), 1);
      }
    });
  }
  std::size_t ended = 0;
  for (int times = 0; times < kReplacements; ++times) {
    auto next = editions.add(a_filesystem());
    while (!next) next = editions.add(a_filesystem());
    editions.let_go(current.exchange(*next), 1);
    ended += editions.take_ended().size();
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(ended + editions.take_ended().size() == kReplacements);
}
