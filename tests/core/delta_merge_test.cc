// What a commit of a delta changes in its base, and that an edit makes all of it.
#include "core/model/delta_merge.h"

#include "core/archive/archive_writer.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using test::contains;

namespace {

struct MergeTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
};

std::unique_ptr<Model> write_and_open(const std::string& path, const std::vector<MergeTensor>& tensors,
                                      const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, shape] : tensors) specs.push_back({name, Dtype::U8, shape});
  auto writer = ArchiveWriter::create(path, specs, metadata, true);
  REQUIRE(writer);
  for (const auto& [name, shape] : tensors) {
    const std::vector<std::byte> bytes(data_size_bytes(Dtype::U8, shape).value());
    REQUIRE(writer->append(bytes));
  }
  REQUIRE(writer->finish());
  auto model = Model::open(path, {.access = Access::ReadWrite});
  REQUIRE(model);
  return std::move(*model);
}

Delta delta_of(const Model& base, std::vector<std::string> removed, Metadata metadata) {
  return {.base = "base.safetensors",
          .base_tensors = digest_of_tensors(base.tensors()),
          .base_bytes = std::string(32, '0'),
          .removed = std::move(removed),
          .metadata = std::move(metadata)};
}

}  // namespace

TEST_CASE("a merge tells patches, remade, new and removed tensors and keys apart", "[core][delta]") {
  const test::TemporaryDirectory directory;
  const auto base = write_and_open((directory.path() / "base.safetensors").string(),
                                   {{"a", {4}}, {"b", {6}}, {"c", {2}}}, {{"k", "1"}, {"gone", "x"}});
  const auto changed = write_and_open((directory.path() / "delta.safetensors").string(),
                                      {{"a", {4}}, {"b", {2, 3}}, {"n", {5}}}, {});
  const Delta delta = delta_of(*base, {"c"}, {{"k", "2"}, {"new", "y"}});
  const auto merge = merge_of(delta, *changed, *base);
  REQUIRE(merge);
  const auto names = [&](const std::vector<std::uint32_t>& positions) {
    std::vector<std::string> found;
    for (const std::uint32_t at : positions) found.emplace_back(changed->tensors()[at].name);
    return found;
  };
  CHECK(names(merge->replaced) == std::vector<std::string>{"a"});
  CHECK(names(merge->remade) == std::vector<std::string>{"b"});
  CHECK(names(merge->added) == std::vector<std::string>{"n"});
  CHECK(merge->removed == std::vector<std::string>{"c"});
  CHECK(merge->metadata == decltype(merge->metadata){{"gone", std::nullopt}, {"k", "2"}, {"new", "y"}});
  CHECK(merge->size_bytes == 15);
  CHECK_FALSE(merge->is_patch());

  auto edit = ModelEdit::of(*base);
  REQUIRE(edit);
  REQUIRE(add_to(*edit, *merge, *changed));
  REQUIRE(edit->begin(true));
  for (const char* name : {"a", "b", "n"}) {
    const auto stage = edit->stage(name);
    REQUIRE(stage != nullptr);
    const std::vector<std::byte> bytes(stage->target().size_bytes, std::byte{7});
    REQUIRE(stage->write(bytes, 0));
  }
  REQUIRE(edit->commit({}));
  const auto after = Model::open(base->path(), {});
  REQUIRE(after);
  CHECK((*after)->tensors().size() == 3);
  CHECK((*after)->tensors().find("c") == std::nullopt);
  CHECK((*after)->tensors()[*(*after)->tensors().find("b")].shape.size() == 2);
  CHECK((*after)->metadata() == Metadata{{"k", "2"}, {"new", "y"}});
}

TEST_CASE("a merge of equal dtypes, shapes and metadata is a patch", "[core][delta]") {
  const test::TemporaryDirectory directory;
  const auto base = write_and_open((directory.path() / "base.safetensors").string(), {{"a", {4}}, {"b", {6}}},
                                   {{"k", "1"}});
  const auto changed = write_and_open((directory.path() / "delta.safetensors").string(), {{"b", {6}}}, {});
  CHECK(merge_of(delta_of(*base, {}, {{"k", "1"}}), *changed, *base)->is_patch());
  CHECK_FALSE(merge_of(delta_of(*base, {}, {}), *changed, *base)->is_patch());
  CHECK_FALSE(merge_of(delta_of(*base, {"a"}, {{"k", "1"}}), *changed, *base)->is_patch());

  Delta stranger = delta_of(*base, {}, {});
  stranger.base_tensors = std::string(32, '1');
  const auto refused = merge_of(stranger, *changed, *base);
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "made for another base"));
}
