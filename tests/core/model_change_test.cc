// Changes of a model: some kinds are committed in place, others as an edit.
#include "core/model/model_change.h"

#include <map>

#include "core/model/delta_base.h"
#include "tests/support/catch.h"
#include "tests/support/model_content.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using test::errno_of;
using test::tensor_content;

namespace {

using NewBytes = std::map<std::string, std::string>;

/// Commits a change with these bytes for the tensors of put().
Result<void> commit_change(ModelChange& change, const NewBytes& fresh = {}) {
  if (auto begun = change.begin(true); !begun) return begun;
  for (const auto& [name, bytes] : fresh) {
    auto written = change.write(name, [&](ByteRange rest) -> Result<std::span<const std::byte>> {
      return test::bytes_of(bytes).subspan(static_cast<std::size_t>(rest.offset), 1);
    });
    if (!written) return written;
  }
  ReaderWriterLock lock;
  return change.commit([](std::uint32_t) { return CommitOptions(); },
                       [&lock](TensorPlace) -> ReaderWriterLock& { return lock; });
}

/// An archive of the tensors a, b and c, open for writing.
struct ChangeScene {
  ChangeScene() { open(); }
  void open() {
    model.reset();  // it reads the archive
    model = Model::open(path, {.access = Access::ReadWrite}).value();
  }
  [[nodiscard]] std::string content(std::string_view name) const { return tensor_content(*model, name); }
  [[nodiscard]] bool has(std::string_view name) const { return model->find(name).has_value(); }
  [[nodiscard]] std::uint64_t offset_of(std::string_view name) const {
    return model->file_range(*model->find(name)).offset;
  }

  test::TemporaryDirectory directory;
  std::string path = directory.write(
      "m.safetensors", test::archive_of({{"a", "aaaa"}, {"b", "bbbbb"}, {"c", "cc"}}, R"({"k":"v"})"));
  std::unique_ptr<Model> model;
};

}  // namespace

TEST_CASE("a change of bytes alone is committed in place", "[core][change]") {
  ChangeScene scene;
  const std::uint64_t before = scene.offset_of("b");
  ModelChange change(*scene.model);
  CHECK(change.is_empty());
  REQUIRE(change.put("b", Dtype::U8, {5}));
  REQUIRE(change.put("c", Dtype::U8, {2}));
  CHECK(change.is_in_place());
  CHECK_FALSE(change.is_empty());
  REQUIRE(change.plan(true));
  CHECK(change.changed().empty());
  REQUIRE(commit_change(change, {{"b", "12345"}, {"c", "67"}}));
  CHECK(change.moved_bytes() + change.freed_bytes() == 0);
  CHECK(scene.content("b") == "12345");  // also in the model that was open
  scene.open();
  CHECK(scene.content("a") == "aaaa");
  CHECK(scene.content("b") == "12345");
  CHECK(scene.content("c") == "67");
  CHECK(scene.offset_of("b") == before);
}

TEST_CASE("a change in place leaves tensors alone that it does not put", "[core][change]") {
  ChangeScene scene;
  ModelChange change(*scene.model);
  REQUIRE(change.put("b", Dtype::U8, {5}));
  REQUIRE(commit_change(change, {{"a", "1234"}, {"b", "12345"}, {"none", "1"}}));
  scene.open();
  CHECK(scene.content("a") == "aaaa");
  CHECK(scene.content("b") == "12345");
}

TEST_CASE("a change without changes commits nothing", "[core][change]") {
  ChangeScene scene;
  const bool has_edit = GENERATE(false, true);
  ModelChange change(*scene.model);
  if (has_edit) REQUIRE(change.edit());
  CHECK(change.is_in_place() == !has_edit);
  CHECK(change.is_empty());
  REQUIRE(commit_change(change));
  scene.open();
  CHECK(scene.content("b") == "bbbbb");
}

TEST_CASE("a new tensor, and one of another dtype or shape, make the change an edit", "[core][change]") {
  ChangeScene scene;
  ModelChange change(*scene.model);
  REQUIRE(change.put("b", Dtype::U8, {5}));
  CHECK(change.is_in_place());
  SECTION("a new tensor") {
    REQUIRE(change.put("new", Dtype::U8, {3}));
    CHECK_FALSE(change.is_in_place());
    REQUIRE(commit_change(change, {{"b", "12345"}, {"new", "678"}}));
    scene.open();
    CHECK(scene.content("new") == "678");
  }
  SECTION("another dtype") {
    REQUIRE(change.put("a", Dtype::I8, {4}));
    CHECK_FALSE(change.is_in_place());
    REQUIRE(commit_change(change, {{"b", "12345"}, {"a", "6789"}}));
    scene.open();
    CHECK(scene.content("a") == "6789");
    CHECK(scene.model->tensor(*scene.model->find("a")).dtype == Dtype::I8);
  }
  SECTION("another shape") {
    REQUIRE(change.put("a", Dtype::U8, {2, 2}));
    CHECK_FALSE(change.is_in_place());
    REQUIRE(commit_change(change, {{"b", "12345"}, {"a", "6789"}}));
    scene.open();
    CHECK(scene.content("a") == "6789");
    CHECK(scene.model->tensor(*scene.model->find("a")).shape.size() == 2);
  }
  CHECK(scene.content("b") == "12345");  // it was put before the change became an edit
  CHECK(scene.content("c") == "cc");
}

TEST_CASE("removals, renames, forms and metadata are an edit, with new bytes of tensors", "[core][change]") {
  ChangeScene scene;
  ModelChange change(*scene.model);
  REQUIRE(change.put("a", Dtype::U8, {4}));
  const auto edit = change.edit();
  REQUIRE(edit);
  CHECK(*change.edit() == *edit);
  REQUIRE((*edit)->rename(std::vector<ModelEdit::Renaming>{{"a", "other"}}));
  REQUIRE((*edit)->remove("c"));
  REQUIRE((*edit)->reinterpret("b", Dtype::I8, {5, 1}));
  REQUIRE((*edit)->set_metadata("k", "new"));
  REQUIRE(change.put("b2", Dtype::U8, {1}));
  CHECK_FALSE(change.is_in_place());
  CHECK_FALSE(change.is_empty());
  REQUIRE(commit_change(change, {{"other", "1234"}, {"b2", "5"}}));
  CHECK(change.changed().size() == 1);
  scene.open();
  CHECK(scene.content("other") == "1234");
  CHECK(scene.content("b") == "bbbbb");
  CHECK(scene.content("b2") == "5");
  CHECK_FALSE(scene.has("a"));
  CHECK_FALSE(scene.has("c"));
  CHECK(scene.model->metadata() == Metadata{{"k", "new"}});
}

TEST_CASE("a failed change of the structure is reported, and changes nothing", "[core][change]") {
  ChangeScene scene;
  ModelChange change(*scene.model);
  const auto edit = change.edit();
  REQUIRE(edit);
  CHECK(errno_of((*edit)->remove("none")) == ENOENT);
  CHECK(errno_of((*edit)->reinterpret("a", Dtype::U8, {5})) == EINVAL);
  CHECK(change.is_empty());
}

TEST_CASE("a change becomes an edit of another opening of the model", "[core][change]") {
  ChangeScene scene;
  std::unique_ptr<Model> writer;
  ModelChange change(*scene.model, [&]() -> Result<const Model*> {
    auto opened = Model::open(scene.path, {.access = Access::ReadWrite});
    if (!opened) return pass_on(std::move(opened));
    writer = std::move(*opened);
    return writer.get();
  });
  REQUIRE(change.put("b", Dtype::U8, {5}));
  CHECK(writer == nullptr);
  REQUIRE(change.put("new", Dtype::U8, {1}));
  REQUIRE(writer != nullptr);
  scene.model.reset();  // the edit does not need it any more
  REQUIRE(commit_change(change, {{"b", "12345"}, {"new", "6"}}));
  writer.reset();
  scene.open();
  CHECK(scene.content("b") == "12345");
  CHECK(scene.content("new") == "6");
}

TEST_CASE("a change stays in place if the opening for an edit fails", "[core][change]") {
  ChangeScene scene;
  ModelChange change(*scene.model, []() -> Result<const Model*> {
    return fail(ErrorCode::ReadOnly, EROFS, "only bytes can change");
  });
  REQUIRE(change.put("b", Dtype::U8, {5}));
  CHECK(errno_of(change.put("new", Dtype::U8, {1})) == EROFS);
  CHECK(errno_of(change.edit()) == EROFS);
  CHECK(change.is_in_place());
  REQUIRE(commit_change(change, {{"b", "12345"}}));
  scene.open();
  CHECK(scene.content("b") == "12345");
}

TEST_CASE("a tensor of the base of a delta changes by an edit, one of the delta in place", "[core][change]") {
  ChangeScene scene;
  const std::string delta = scene.directory / "delta.safetensors";
  scene.model.reset();
  REQUIRE(create_delta(delta, *Model::open(scene.path, {}).value(), ""));
  const auto open = [&] {
    return Model::open(scene.path, {.access = Access::ReadWrite, .deltas = {delta}}).value();
  };
  {
    const auto model = open();
    ModelChange change(*model);
    REQUIRE(change.put("b", Dtype::U8, {5}));
    CHECK_FALSE(change.is_in_place());
    REQUIRE(commit_change(change, {{"b", "12345"}}));
  }
  {
    const auto model = open();
    CHECK(tensor_content(*model, "b") == "12345");
    ModelChange change(*model);
    REQUIRE(change.put("b", Dtype::U8, {5}));
    CHECK(change.is_in_place());
    SECTION("a tensor of the base as well") {
      REQUIRE(change.put("a", Dtype::U8, {4}));
      CHECK_FALSE(change.is_in_place());
      REQUIRE(commit_change(change, {{"a", "6789"}, {"b", "67890"}}));
    }
    SECTION("nothing else") {
      REQUIRE(commit_change(change, {{"b", "67890"}}));
    }
  }
  CHECK(tensor_content(*open(), "b") == "67890");
  CHECK(tensor_content(*open(), "c") == "cc");
  scene.open();
  CHECK(scene.content("a") == "aaaa");
  CHECK(scene.content("b") == "bbbbb");
}

TEST_CASE("an edit is refused if its index was made from another one than the present", "[core][change]") {
  const test::TemporaryDirectory directory;
  directory.write("a.safetensors", test::archive_of({{"a", "aaaa"}}));
  directory.write("b.safetensors", test::archive_of({{"b", "bbbbb"}}));
  const std::string text = R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})";
  const auto index = directory.write("m.safetensors.index.json", text);
  const auto model = Model::open(index, {.access = Access::ReadWrite}).value();
  const std::string next = R"({"weight_map":{"b":"b.safetensors","a":"a.safetensors"}})";
  const auto replace = [&](const std::string& before) {
    std::map<std::uint32_t, Transaction> transactions;
    Transaction& edit = transactions.try_emplace(0, model->archive(0)).first->second;
    REQUIRE(edit.edit(edit_of(model->version(0))));
    REQUIRE(edit.replace_index(index, before, next));
    ReaderWriterLock lock;
    return errno_of(commit_together(
        transactions, [](std::uint32_t) { return CommitOptions(); },
        [&lock](TensorPlace) -> ReaderWriterLock& { return lock; }));
  };
  CHECK(replace(text + " ") == ESTALE);
  CHECK(test::content_of(index) == text);
  CHECK(replace(text) == 0);
  CHECK(test::content_of(index) == next);
}
