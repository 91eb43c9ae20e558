// Crashes at every moment of a commit and of its recovery: every transaction is there whole or not at all,
// and it is there when commit() had returned.
//
// A failure names the workload and the seed; `crash_explorer --workload NAME --seed SEED --states 1` replays
// it.
#include <string>

#include "tests/crash/crash_run.h"
#include "tests/support/catch.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kStates = 100'000;  // of all workloads together

/// Makes this number of random crashes in each workload.
CrashCounts crash_everywhere(std::uint64_t crashes) {
  CrashCounts counts;
  for (const Workload& workload : workloads()) {
    const History history = record(workload);
    if (history.failure) FAIL(*history.failure);
    for (std::uint64_t seed = 0; seed < crashes; ++seed) {
      RandomChoices choices(seed);
      const auto wrong = crash_once(history, choices, counts);
      if (wrong) FAIL("seed " << seed << ": " << *wrong);
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("crash: the archive used for it opens", "[crash]") {
  DiskModel disk;
  put_archive(disk);
  const auto process = disk.start_process();
  const auto archive = Archive::open(kArchivePath, Access::ReadOnly, *process);
  if (!archive) FAIL(archive.error().message);
  REQUIRE((*archive)->tensors().size() == small_archive().tensors().size());
  for (const TestTensor& tensor : small_archive().tensors()) {
    const Tensor found = (*archive)->tensors()[small_archive().position(tensor.name)];
    CHECK(found.name == tensor.name);
    CHECK((*archive)->file_range(found.data) == ByteRange{tensor.offset, tensor.size_bytes});
  }
}

TEST_CASE("crash: every workload does what it says when nothing happens", "[crash]") {
  for (const Workload& workload : workloads()) {
    const History history = record(workload);
    INFO(workload.name);
    if (history.failure) FAIL(*history.failure);
    const DiskImage& end = history.moments.back().image;
    CHECK(end.has_content(end.inode_at(kArchivePath), history.contents.back()));
  }
}

TEST_CASE("crash: nothing is torn or lost in 100,000 states", "[crash][exhaustive]") {
  const CrashCounts counts = crash_everywhere(kStates / workloads().size() + 1);
  CHECK(counts.states >= kStates);
  CHECK(counts.in_recovery >= 100);
  CHECK(counts.deepest >= 3);
  WARN(counts.states << " states, " << counts.in_recovery << " of them crashes during recovery, up to "
                     << counts.deepest << " in a row; " << counts.follow_ups
                     << " with another commit afterwards");
}

TEST_CASE("crash: every choice of whole blocks, sizes and names, at every moment", "[crash][exhaustive]") {
  CrashCounts counts;
  for (const Workload& workload : workloads()) {
    if (workload.archive != &small_archive() || workload.durability != Durability::Power) continue;
    const History history = record(workload);
    const std::uint64_t before = counts.states;
    INFO(workload.name);
    if (const auto wrong = crash_every_way(history, counts)) FAIL(*wrong);
    // A crash has choices, so there are more states than moments.
    CHECK(counts.states - before > history.moments.size());
  }
  WARN(counts.states << " states");
}

}  // namespace stfs::test
