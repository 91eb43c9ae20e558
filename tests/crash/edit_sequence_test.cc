// Long sequences of edits and patches, compared with a model in memory.
#include "tests/crash/edit_sequence.h"

#include "tests/support/catch.h"

namespace stfs::test {
namespace {

void go_on(std::uint64_t steps) {
  SequenceCounts all;
  for (const SequenceScenario& scenario : sequence_scenarios()) {
    INFO(scenario.name);
    SequenceCounts counts;
    const auto wrong = run_sequence(scenario, steps, steps, counts);
    INFO(wrong.value_or(""));
    REQUIRE_FALSE(wrong);
    CHECK(counts.edits + counts.patches == steps);
    CHECK(counts.compactions > steps / 20);
    CHECK(counts.stale > 0);
    CHECK(counts.kills > steps / 200);
    CHECK(counts.host_crashes > steps / 200);
    CHECK(counts.power_losses > steps / 200);
    CHECK(counts.judged.in_recovery > steps / 200);
    CHECK(counts.judged.hidden > 0);
    all += counts;
  }
  WARN(all);
}

}  // namespace

TEST_CASE("a sequence of edits and patches with crashes ends in the model in memory", "[crash][edit]") {
  go_on(1000);
}

TEST_CASE("so does one of a hundred thousand", "[.long][crash][edit]") {
  go_on(100'000);
}

}  // namespace stfs::test
