// Paths from the root, as attributes and messages show them.
#include "core/base/absolute_path.h"

#include "tests/support/catch.h"

using namespace stfs;

TEST_CASE("an absolute path has no . in it, and keeps .. and links", "[core][absolute_path]") {
  const std::string here = std::filesystem::current_path().string();
  CHECK(absolute_path("./a.safetensors")->string() == here + "/a.safetensors");
  CHECK(absolute_path("models/./a")->string() == here + "/models/a");
  CHECK(absolute_path("../a")->string() == here + "/../a");
  CHECK(absolute_path(".")->string() == here);
  CHECK(absolute_path("/.")->string() == "/");
  CHECK(absolute_path("/a//b/./c/")->string() == "/a/b/c/");
  CHECK(absolute_path("/a/.hidden/...")->string() == "/a/.hidden/...");
}
