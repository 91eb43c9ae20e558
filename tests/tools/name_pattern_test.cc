// Patterns of stfs mv.
#include "tools/cli/name_pattern.h"

#include "tests/support/catch.h"

using stfs::tools::renamed;

TEST_CASE("the texts of the stars take the place of those in the new name", "[tools][mv]") {
  CHECK(renamed("a", "a", "b") == "b");
  CHECK(renamed("ab", "a", "b") == std::nullopt);
  CHECK(renamed("model.layers.10.mlp.w", "model.*", "lm.*") == "lm.layers.10.mlp.w");
  CHECK(renamed("x.layers.3.mlp.up", "*.layers.*.mlp.*", "*.h.*.ffn.*") == "x.h.3.ffn.up");
  CHECK(renamed("aXbXc", "*X*", "*-*") == "a-bXc");
  CHECK(renamed("aXbX", "*X", "*") == "aXb");
  CHECK(renamed("anything", "*", "*.old") == "anything.old");
  CHECK(renamed("", "*", "x*") == "x");
  CHECK(renamed("a[0]?", "a[0]?", "b") == "b");
  CHECK(renamed("a0", "a[0]", "b") == std::nullopt);
}
