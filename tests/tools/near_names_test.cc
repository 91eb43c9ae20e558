// Suggestions of names: only near names, only a few, the best one first.
#include "tools/text/near_names.h"

#include "tests/support/catch.h"

using stfs::tools::NearNames;

namespace {

std::string question(std::string_view wanted, std::initializer_list<std::string_view> names) {
  NearNames near(wanted);
  for (const std::string_view name : names) near.offer(name);
  return near.question();
}

}  // namespace

TEST_CASE("near names finds slips: missing, extra, wrong and swapped characters", "[tools][near_names]") {
  for (const char* wanted : {"weght", "weigght", "wejght", "wieght"}) {
    CAPTURE(wanted);
    CHECK(question(wanted, {"bias", "weight"}) == ", did you mean weight?");
  }
}

TEST_CASE("near names prefers slips to parts and stops at three", "[tools][near_names]") {
  CHECK(question("norm.weight", {"x.norm.weight.y.z", "norm.weigh", "morm.wejght", "nor.weight"}) ==
        ", did you mean norm.weigh, nor.weight or morm.wejght?");
  CHECK(question("q_proj", {"layers.0.q_proj.weight"}) == ", did you mean layers.0.q_proj.weight?");
}

TEST_CASE("near names lists three, and the worst may come last", "[tools][near_names]") {
  CHECK(question("layers.0.norm.weight",
                 {"layers.0.norm.weigh", "layers.0.norm.weig", "layers.0.norm.wei", "layers.0.norm.we"}) ==
        ", did you mean layers.0.norm.weigh, layers.0.norm.weig or layers.0.norm.wei?");
}

TEST_CASE("near names asks nothing where nothing is near", "[tools][near_names]") {
  CHECK(question("embedding", {"bias", "lm_head"}).empty());
  CHECK(question("", {"bias"}).empty());
  CHECK(question("x", {}).empty());
}
