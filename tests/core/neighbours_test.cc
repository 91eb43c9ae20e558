// Tests which other models are found beside an index.
#include "core/model/neighbours.h"

#include <fmt/format.h>

#include "core/model/delta_base.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using namespace stfs::test;
using Names = std::vector<std::string>;

namespace {

/// An index of one shard, in a directory.
struct Indexed {
  Indexed() {
    directory.write("shard.safetensors", archive_of({{"a", "aaaa"}}));
    directory.write("m.safetensors.index.json", R"({"metadata":{},"weight_map":{"a":"shard.safetensors"}})");
  }
  [[nodiscard]] std::unique_ptr<Model> open() const {
    auto model = Model::open(directory / "m.safetensors.index.json", {});
    REQUIRE(model);
    return std::move(*model);
  }

  TemporaryDirectory directory;
};

}  // namespace

TEST_CASE_METHOD(Indexed, "a whole model beside an index is named, other archives are not", "[core][model]") {
  directory.write("empty.safetensors", archive_of({}));
  directory.write("broken.safetensors", "no archive");
  directory.write("x-00001-of-00002.safetensors", archive_of({{"w", "w"}}));
  CHECK(models_beside(*open()).empty());
  CHECK(models_beside_text(*open()).empty());

  directory.write("other.safetensors", archive_of({{"w", "w"}}));
  CHECK(models_beside(*open()) == Names{"other.safetensors"});
  CHECK(
      models_beside_text(*open()) ==
      directory.path().string() +
          ": also holds the model \"other.safetensors\", which the index does not name: name the file to use "
          "it");
  directory.write("third.safetensors", archive_of({{"w", "w"}}));
  CHECK(models_beside(*open()) == Names{"other.safetensors", "third.safetensors"});
  CHECK(models_beside_text(*open()).find("\"other.safetensors\" and 1 more, which") != std::string::npos);
}

TEST_CASE_METHOD(Indexed, "a model of one archive has no neighbours", "[core][model]") {
  directory.write("other.safetensors", archive_of({{"w", "w"}}));
  const auto model = Model::open(directory / "shard.safetensors", {});
  REQUIRE(model);
  CHECK(models_beside(**model).empty());
}

TEST_CASE_METHOD(Indexed, "sixteen archives beside an index are looked at", "[core][model]") {
  directory.write("z.safetensors", archive_of({{"w", "w"}}));
  for (int at = 0; at < 15; ++at) directory.write(fmt::format("b{}.safetensors", at), "no archive");
  CHECK(models_beside(*open()) == Names{"z.safetensors"});
  directory.write("c.safetensors", "no archive");
  CHECK(models_beside(*open()).empty());
}

TEST_CASE("a delta has no index that could name the archives beside its base", "[core][model][delta]") {
  const TemporaryDirectory directory;
  directory.write("base.safetensors", archive_of({{"a", "aaaa"}}));
  directory.write("other.safetensors", archive_of({{"w", "w"}}));
  const std::string delta = directory / "delta.safetensors";
  REQUIRE(create_delta(delta, *Model::open(directory / "base.safetensors", {}).value(), ""));
  const auto model = Model::open(directory / "base.safetensors", {.deltas = {delta}});
  REQUIRE(model);
  CHECK((*model)->is_sharded());
  CHECK(models_beside(**model).empty());
}
