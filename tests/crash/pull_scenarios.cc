#include "tests/crash/pull_run.h"

namespace stfs::test {

const std::vector<PullScenario>& pull_scenarios() {
  using sync::DiffEncoding;
  static const std::vector<PullScenario> scenarios = {
      {"chain",
       {{.number = 1, .base = {}},
        {.number = 2, .base = 1},
        {.number = 3, .base = 2, .encoding = DiffEncoding::Overwrite},
        {.number = 4, .base = 3}}},
      {"full version of the same tensors",
       {{.number = 1, .base = {}},
        {.number = 2, .base = 1, .encoding = DiffEncoding::Overwrite},
        {.number = 4, .base = {}},
        {.number = 5, .base = 4}}},
      {"full version of other tensors",
       {{.number = 1, .base = {}},
        {.number = 2, .base = 1},
        {.number = 3, .base = {}, .layout = PulledLayout::OtherTensors},
        {.number = 4, .base = 3, .encoding = DiffEncoding::Overwrite, .layout = PulledLayout::OtherTensors}}},
      {"other tensors and back",
       {{.number = 1, .base = {}, .layout = PulledLayout::OtherTensors},
        {.number = 2, .base = {}},
        {.number = 3, .base = {}, .layout = PulledLayout::OtherTensors},
        {.number = 4, .base = {}}}},
      {"model of its own",
       {{.number = 1, .base = 0},
        {.number = 2, .base = 1, .encoding = DiffEncoding::Overwrite},
        {.number = 3, .base = {}}},
       true},
      // The host's archives get other names.
      {"other tensors in the same archives",
       {{.number = 1, .base = {}},
        {.number = 2, .base = 1},
        {.number = 3, .base = {}, .layout = PulledLayout::SameArchives},
        {.number = 4, .base = 3, .layout = PulledLayout::SameArchives}}},
  };
  return scenarios;
}

}  // namespace stfs::test
