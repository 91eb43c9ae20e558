// File systems end when the last holder releases them, not earlier. Then their numbers are used again.
#include "fs/model/mounted_models.h"

#include <atomic>
#include <thread>
#include <vector>

#include "tests/fs/driven_model.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

std::unique_ptr<MountedModel> a_filesystem() {
  return DrivenModel().take();
}

}  // namespace

TEST_CASE("a file system is found by its number until it was let go of", "[fs][editions]") {
  MountedModels mounted_models(1, 3);
  CHECK_FALSE(mounted_models.pin(0));
  CHECK_FALSE(mounted_models.pin(1));
  REQUIRE(mounted_models.add(a_filesystem()) == 1U);
  CHECK(mounted_models.pin(1).number() == 1);
  CHECK(mounted_models.all().size() == 1);
  CHECK(mounted_models.take_ended().empty());
  mounted_models.let_go(1, 1);
  CHECK_FALSE(mounted_models.pin(1));
  CHECK(mounted_models.all().empty());
  CHECK(mounted_models.take_ended().size() == 1);
  CHECK(mounted_models.take_ended().empty());
}

TEST_CASE("look-ups and calls hold a file system", "[fs][editions]") {
  MountedModels mounted_models(0, 3);
  REQUIRE(mounted_models.add(a_filesystem()));
  {
    const MountedModels::Pin pin = mounted_models.pin(0);
    pin.note_lookup(kRootIno);
    pin.note_lookup(kRootIno);
    mounted_models.let_go(0, 1);  // the reference of add()
    mounted_models.let_go(0, 2);
    CHECK(mounted_models.take_ended().empty());
    CHECK(pin->attributes(kRootIno));
  }
  CHECK(mounted_models.take_ended().size() == 1);
}

TEST_CASE("a number is given again, and not before its file system has ended", "[fs][editions]") {
  MountedModels mounted_models(5, 2);
  REQUIRE(mounted_models.add(a_filesystem()) == 5U);
  REQUIRE(mounted_models.add(a_filesystem()) == 6U);
  const auto refused = mounted_models.add(a_filesystem());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == ENFILE);
  mounted_models.let_go(5, 1);
  CHECK(mounted_models.add(a_filesystem()) == 5U);
  CHECK(mounted_models.take_ended().size() == 1);
}

TEST_CASE("threads that come and go never find a file system that has ended", "[fs][editions]") {
  constexpr int kReplacements = 300;
  MountedModels mounted_models(0, 4);
  std::atomic<MountedModels::Number> current = mounted_models.add(a_filesystem()).value();
  std::atomic<bool> is_over = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      while (!is_over) {
        const MountedModels::Pin pin = mounted_models.pin(current);
        if (!pin) continue;  // replaced in between
        pin.note_lookup(kRootIno);
        if (!pin->attributes(kRootIno)) ++wrong;
        mounted_models.let_go(pin.number(), 1);
      }
    });
  }
  std::size_t ended = 0;
  for (int times = 0; times < kReplacements; ++times) {
    auto next = mounted_models.add(a_filesystem());
    while (!next) next = mounted_models.add(a_filesystem());
    mounted_models.let_go(current.exchange(*next), 1);
    ended += mounted_models.take_ended().size();
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(ended + mounted_models.take_ended().size() == kReplacements);
}
