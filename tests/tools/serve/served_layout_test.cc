// Places of the tensors of the next generation: shared tensors, moved tensors, and freed memory.
#include "tools/serve/served_layout.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tools/device/backend.h"

using namespace stfs;
using namespace stfs::device;
using namespace stfs::serve;
using namespace stfs::upload;

namespace {

constexpr std::uint64_t kServedBytes = 1000;

/// Tensors of 1000 bytes, on the CPU.
Plan plan_of(std::uint32_t count) {
  Plan plan;
  plan.devices = {{Device{}, 0}};
  for (std::uint32_t at = 0; at < count; ++at) {
    PlannedTensor tensor;
    tensor.name = "t" + std::to_string(at);
    tensor.shape = {kServedBytes};
    tensor.place = {aligned_for_tensor(plan.devices[0].arena_bytes), kServedBytes};
    plan.devices[0].arena_bytes = tensor.place.end();
    plan.tensors.push_back(tensor);
  }
  return plan;
}

std::vector<std::shared_ptr<Arena>> arenas_of(const Plan& plan) {
  std::vector<std::shared_ptr<Arena>> arenas;
  for (const PlannedDevice& device : plan.devices)
    arenas.push_back(Backend::open(device.device).value()->allocate(device.arena_bytes, false).value());
  return arenas;
}

struct Step {
  PartOfPlan part;
  ServedLayout layout;
};

/// The generation in which these tensors have changed.
Step step(const Plan& plan, const ServedLayout& before, std::uint64_t generation,
          const std::vector<std::uint32_t>& changed, std::size_t most_arenas = 64) {
  std::vector<bool> flags(plan.tensors.size(), false);
  for (const std::uint32_t at : changed) flags[at] = true;
  Step made;
  made.part = part_to_upload(plan, before, flags, most_arenas);
  made.layout = next_layout(before, flags, made.part, arenas_of(made.part.plan), generation);
  return made;
}

/// Checks that every tensor is in its arena, and that no two tensors overlap.
void check_places(const ServedLayout& layout) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> begins;
  for (const ServedPlace& place : layout.places) {
    REQUIRE(place.arena < layout.arenas.size());
    CHECK(place.place.size_bytes == kServedBytes);
    CHECK(place.place.end() <= layout.arenas[place.arena].arena->size_bytes());
    CHECK(place.place.offset % kTensorAlignment == 0);
    begins.emplace_back(place.arena, place.place.offset);
  }
  std::ranges::sort(begins);
  CHECK(std::ranges::adjacent_find(begins) == begins.end());
  std::vector<std::uint64_t> numbers;
  for (const ServedArena& it : layout.arenas) numbers.push_back(it.number);
  std::ranges::sort(numbers);
  CHECK(std::ranges::adjacent_find(numbers) == numbers.end());
}

}  // namespace

TEST_CASE("a generation shares the arenas of what has not changed", "[tools][serve]") {
  const Plan plan = plan_of(100);
  const ServedLayout first = whole_layout(plan, arenas_of(plan), 1);
  CHECK(first.own_bytes(1) == first.size_bytes());
  const Step second = step(plan, first, 2, {3, 50});
  CHECK(second.part.positions == std::vector<std::uint32_t>{3, 50});
  CHECK(second.part.plan.devices[0].arena_bytes == 1024 + kServedBytes);
  REQUIRE(second.layout.arenas.size() == 2);
  CHECK(second.layout.arenas[0].arena == first.arenas[0].arena);
  CHECK(second.layout.arenas[0].number == first.arenas[0].number);
  CHECK(second.layout.own_bytes(2) == 1024 + kServedBytes);
  CHECK(second.layout.own_bytes(1) == first.size_bytes());
  for (std::uint32_t at = 0; at < 100; ++at) {
    const bool is_changed = at == 3 || at == 50;
    CHECK(second.layout.places[at].arena == (is_changed ? 1U : 0U));
    CHECK(second.layout.places[at].changed_in == (is_changed ? 2U : 1U));
    if (!is_changed) CHECK(second.layout.places[at].place == first.places[at].place);
  }
  check_places(second.layout);
}

TEST_CASE("a generation without changes has no memory of its own", "[tools][serve]") {
  const Plan plan = plan_of(10);
  const ServedLayout first = whole_layout(plan, arenas_of(plan), 1);
  const Step second = step(plan, first, 2, {});
  CHECK(second.part.positions.empty());
  CHECK(second.part.plan.devices.empty());
  CHECK(second.layout.arenas.size() == 1);
  CHECK(second.layout.own_bytes(2) == 0);
}

TEST_CASE("an arena that is mostly unused is given up: what is left of it moves, unchanged",
          "[tools][serve]") {
  const Plan plan = plan_of(10);
  const ServedLayout first = whole_layout(plan, arenas_of(plan), 1);
  const Step second = step(plan, first, 2, {0, 1, 2, 3, 4, 5});
  CHECK(second.part.positions.size() == 10);
  REQUIRE(second.layout.arenas.size() == 1);
  CHECK(second.layout.arenas[0].arena != first.arenas[0].arena);
  CHECK(second.layout.places[5].changed_in == 2);
  CHECK(second.layout.places[6].changed_in == 1);
  check_places(second.layout);
}

TEST_CASE("memory and the number of arenas stay bounded over many generations", "[tools][serve]") {
  const Plan plan = plan_of(200);
  ServedLayout layout = whole_layout(plan, arenas_of(plan), 1);
  const std::uint64_t whole_bytes = layout.size_bytes();
  constexpr std::size_t kMost = 16;
  std::vector<std::uint64_t> changed_in(200, 1);
  for (std::uint64_t generation = 2; generation < 500; ++generation) {
    const std::vector<std::uint32_t> changed = {static_cast<std::uint32_t>(generation * 7 % 200),
                                                static_cast<std::uint32_t>(generation * 31 % 199)};
    layout = step(plan, layout, generation, changed, kMost).layout;
    for (const std::uint32_t at : changed) changed_in[at] = generation;
    REQUIRE(layout.arenas.size() <= kMost);
    REQUIRE(layout.size_bytes() < 2 * whole_bytes + 2 * 1024);
    for (std::size_t at = 0; at < 200; ++at) REQUIRE(layout.places[at].changed_in == changed_in[at]);
  }
  check_places(layout);
}
