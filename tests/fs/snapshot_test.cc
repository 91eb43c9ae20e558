// Tests snapshots that are replaced while calls use them.
#include "fs/tree/snapshot.h"

#include <pthread.h>

#include <memory>
#include <string>
#include <utility>

#include "core/archive/archive.h"
#include "tests/support/allocation_faults.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using namespace stfs::test;

namespace {

struct OneTensor {
  [[nodiscard]] std::unique_ptr<Snapshot> snapshot() const {
    return std::make_unique<Snapshot>(std::make_shared<Model>(Archive::open(path, Access::ReadOnly).value()),
                                      Layout::Flat);
  }

  TemporaryDirectory directory;
  std::string path = directory.write("m.safetensors", archive_of({{"w", "bytes"}}));
  Snapshots snapshots{snapshot()};
};

}  // namespace

TEST_CASE("a replaced snapshot stays until the calls that began before have ended", "[fs][snapshot]") {
  OneTensor of;
  const std::weak_ptr<const Model> first = of.snapshots->model;
  of.snapshots.replace(of.snapshot());
  CHECK(first.expired());
  CHECK(of.snapshots.have_earlier_calls_ended());

  Snapshot::Pin call = of.snapshots.pin();
  const std::weak_ptr<const Model> pinned = of.snapshots->model;
  of.snapshots.replace(of.snapshot());
  const Snapshot::Pin later = of.snapshots.pin();
  const Snapshot* const between = &*of.snapshots;
  of.snapshots.replace(of.snapshot());
  CHECK(call->model == pinned.lock());
  CHECK(&*of.snapshots != between);
  CHECK_FALSE(of.snapshots.have_earlier_calls_ended());
  call.reset();
  CHECK(pinned.expired());
  CHECK_FALSE(of.snapshots.have_earlier_calls_ended());  // of the later call
}

TEST_CASE("a call keeps all later snapshots", "[fs][snapshot]") {
  OneTensor of;
  Snapshot::Pin call = of.snapshots.pin();
  of.snapshots.replace(of.snapshot());
  const std::weak_ptr<const Model> second = of.snapshots->model;
  of.snapshots.replace(of.snapshot());
  CHECK_FALSE(second.expired());
  call.reset();
  CHECK(second.expired());
  CHECK(of.snapshots.have_earlier_calls_ended());
}

TEST_CASE("a replacement needs no memory", "[fs][snapshot][memory]") {
  OneTensor of;
  const Snapshot::Pin call = of.snapshots.pin();
  auto next = of.snapshot();
  const std::uint64_t allocations = AllocationFaults::allocations();
  of.snapshots.replace(std::move(next));
  const bool needs_none = AllocationFaults::allocations() == allocations;
  CHECK(needs_none);
}

TEST_CASE("a call that has kept very many snapshots frees them with little stack", "[fs][snapshot]") {
  constexpr int kSnapshots = 20'000;
  constexpr std::size_t kStackBytes = 256 << 10;
  OneTensor of;
  Snapshot::Pin call = of.snapshots.pin();
  for (int made = 0; made < kSnapshots; ++made)
    of.snapshots.replace(std::make_unique<Snapshot>(call->model, Layout::Flat));
  const auto let_go = [](void* pin) -> void* {
    static_cast<Snapshot::Pin*>(pin)->reset();
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_t thread{};
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, kStackBytes) == 0);
  REQUIRE(pthread_create(&thread, &attributes, let_go, &call) == 0);
  REQUIRE(pthread_join(thread, nullptr) == 0);
  static_cast<void>(pthread_attr_destroy(&attributes));
  CHECK(of.snapshots.have_earlier_calls_ended());
}
