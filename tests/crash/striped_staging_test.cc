// Tensors that are staged in a journal's stripes, against a plain vector.
#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "core/commit/staging.h"
#include "tests/crash/striped_disk.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("a journal lends its stripes to one content at a time, and none on a nearly full disk",
          "[stripes]") {
  DiskOptions options = disk_of(2);
  options.striping.from_bytes = 100;
  options.striping.spare_bytes = 1000;
  options.free_bytes = 1500;
  DiskModel disk(options);
  const auto process = disk.start_process();
  const auto journal = Journal::create(*process, "/models/model.safetensors").value();
  const ByteRange place = {journal->allocate(4 * kStripe), 4 * kStripe};
  CHECK(journal->lend_stripes(place, 99, 0).value() == nullptr);
  CHECK(journal->lend_stripes(place, 100, 501).value() == nullptr);
  CHECK(journal->lend_stripes(place, 100, 500).value() != nullptr);
  CHECK(journal->lend_stripes(place, 100, 0).value() == nullptr);
  journal->return_stripes();
  CHECK(journal->lend_stripes(place, 100, 0).value() != nullptr);
}

TEST_CASE("a cut to nothing that finds no room leaves what is in stripes", "[stripes]") {
  DiskModel disk(disk_of(2));
  const auto process = disk.start_process();
  FaultyStorage storage(*process);
  const auto journal = Journal::create(storage, "/models/model.safetensors").value();
  Staging staging(*journal, {10, 4 * kStripe});
  const auto content = some_bytes(3 * kStripe, 1);
  REQUIRE(staging.write(content, 0));
  storage.plan().fail_call(FileCall::Reserve, 1, ENOSPC);
  REQUIRE_FALSE(staging.resize(0));
  std::vector<std::byte> found(content.size());
  REQUIRE(staging.read(found, 0, {}));
  CHECK((found == content));
}

namespace {

/// Random writes, cuts and reads of one tensor. @return how many writes were done in halves.
unsigned stage_at_random(unsigned seed) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  DiskModel disk({.has_clone = true,
                  .striping = {.files = 2 + static_cast<std::uint32_t>(below(2)),
                               .stripe_bytes = kStripe,
                               .slots = 1 + static_cast<std::uint32_t>(below(2)),
                               .from_bytes = kDiskBlockBytes}});
  const auto process = disk.start_process();
  const auto journal = Journal::create(*process, "/models/model.safetensors").value();
  const std::size_t size = 1 + below(60'000);
  Staging staging(*journal, {below(10'000), size});
  std::vector<std::byte> expected = some_bytes(size, seed);
  const std::vector<std::byte> old = expected;
  const auto read_base = [&](std::span<std::byte> to, std::uint64_t at) -> Result<void> {
    std::copy_n(old.begin() + static_cast<std::ptrdiff_t>(at), to.size(), to.begin());
    return {};
  };

  if (seed % 2 == 0) {  // as O_TRUNC does
    REQUIRE(staging.resize(0));
    expected.clear();
  }
  std::size_t next = 0;  // where what comes in order goes on
  unsigned halves = 0;
  constexpr int kSteps = 120;
  for (int step = 0; step < kSteps; ++step) {
    const std::size_t action = below(12);
    if (action == 0) {
      const std::size_t to = below(2) == 0 ? 0 : below(size + 1);
      REQUIRE(staging.resize(to));
      expected.resize(to);
      if (to == 0) next = 0;
    } else if (action < 9) {
      const bool is_in_order = action > 2 && next < size;
      const std::size_t at = is_in_order ? next : below(size);
      const auto part =
          some_bytes(1 + below(std::min<std::size_t>(size - at, 9000)), seed + static_cast<unsigned>(step));
      if (is_in_order) next = at + part.size();
      if (expected.size() < at + part.size()) expected.resize(at + part.size());
      std::ranges::copy(part, expected.begin() + static_cast<std::ptrdiff_t>(at));
      if (staging.takes_halves({at, part.size()})) {
        ++halves;
        REQUIRE(staging.note(part, at));
        REQUIRE(staging.put(part, at));
      } else {
        REQUIRE(staging.write(part, at));
      }
    }
    REQUIRE(staging.size_bytes() == expected.size());
    if (below(6) != 0 && step + 1 < kSteps) continue;  // what is read leaves the stripes
    std::vector<std::byte> found(expected.size());
    REQUIRE(staging.read(found, 0, read_base));
    REQUIRE((found == expected));
  }
  return halves;
}

}  // namespace

TEST_CASE("a tensor staged in stripes, also in halves, reads as a plain vector does", "[stripes]") {
  unsigned halves = 0;
  for (unsigned seed = 1; seed <= 80; ++seed) halves += stage_at_random(seed);
  CHECK(halves > 200);
}
