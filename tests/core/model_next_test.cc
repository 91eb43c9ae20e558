// A program uses its archives after its own edit: versions, ids, and bytes that are still read.
#include <functional>

#include "core/commit/transaction.h"
#include "core/model/model_edit.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// A model of three tensors, whose header has no room.
struct LiveScene {
  explicit LiveScene(std::size_t size_bytes = 5000) {
    const Tensors tensors = {{"a", std::string(size_bytes, 'a')},
                             {"b", std::string(size_bytes, 'b')},
                             {"c", std::string(size_bytes, 'c')}};
    path = directory.write("m.safetensors", archive_of(tensors));
    model = std::make_unique<Model>(Archive::open(path, Access::ReadWrite).value());
  }
  /// Commits an edit, with bytes for new tensors. The archive's own versions follow the edit.
  void edit(const std::function<void(ModelEdit&)>& change, const std::string& added = {}, char byte = 'n') {
    ModelEdit edit = ModelEdit::of(*model).value();
    change(edit);
    REQUIRE(edit.begin(true));
    if (!added.empty()) {
      const std::string bytes(7000, byte);
      REQUIRE(edit.stage(added)->write(std::as_bytes(std::span(bytes)), 0));
    }
    REQUIRE(edit.commit({}));
  }
  void follow(const std::function<bool(TensorId)>& is_open = [](TensorId) { return false; }) {
    auto next = model->next({.id_of_new = [this](std::string_view) { return TensorId{end++}; },
                             .is_open = is_open,
                             .end_of_ids = [this] { return end; }});
    REQUIRE(next);
    before.push_back(std::move(model));
    model = std::move(*next);
  }
  [[nodiscard]] std::string read(ByteRange range) const {
    std::string bytes(range.size_bytes, '\0');
    REQUIRE(model->front().read_through(std::as_writable_bytes(std::span(bytes)), range.offset));
    return bytes;
  }
  [[nodiscard]] std::string read(TensorId tensor) const { return read(model->file_range(tensor)); }
  void patch(TensorId tensor, char byte) {
    Transaction transaction(model->archive(0));
    const std::string bytes(model->file_range(tensor).size_bytes, byte);
    REQUIRE((*transaction.stage(model->place(tensor).tensor))->write(std::as_bytes(std::span(bytes)), 0));
    ReaderWriterLock lock;
    REQUIRE(transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; }));
  }

  TemporaryDirectory directory;
  std::string path;
  std::uint32_t end = 3;
  std::unique_ptr<Model> model;
  std::vector<std::unique_ptr<Model>> before;
};

}  // namespace

TEST_CASE("an archive goes on after an edit: patches and further edits commit", "[core][edit]") {
  LiveScene scene;
  const TensorId a = *scene.model->find("a");
  const TensorId c = *scene.model->find("c");
  scene.edit(
      [](ModelEdit& edit) {
        REQUIRE(edit.remove("b"));
        REQUIRE(edit.rename(std::vector<ModelEdit::Renaming>{{"c", "d"}}));
        REQUIRE(edit.put("new", Dtype::U8, {7000}));
      },
      "new");
  scene.follow();
  CHECK(scene.model->find("a") == a);
  CHECK(scene.model->find("d") == c);
  CHECK(scene.model->find("new") == TensorId{3});
  CHECK_FALSE(scene.model->find("b"));
  CHECK(scene.read(a) == std::string(5000, 'a'));
  CHECK(scene.read(c) == std::string(5000, 'c'));
  CHECK(scene.read(TensorId{3}) == std::string(7000, 'n'));

  scene.model->archive(0).end_move();
  scene.patch(c, 'p');
  CHECK(scene.read(c) == std::string(5000, 'p'));
  scene.edit([](ModelEdit& edit) { REQUIRE(edit.reinterpret("d", Dtype::U8, {50, 100})); });
  scene.follow();
  CHECK(scene.model->tensor(c).shape.size() == 2);
  CHECK_FALSE(scene.model->archive(0).check_for_change()->is_touched);

  const auto opened = Archive::open(scene.path, Access::ReadOnly).value();
  CHECK(opened->tensors().size() == 3);
  CHECK(opened->tensors().find("d"));
}

TEST_CASE("readers of the version before an edit that moves tensors get their bytes", "[core][edit]") {
  LiveScene scene;
  std::vector<ByteRange> old_places;
  for (std::uint32_t at = 0; at < 3; ++at) old_places.push_back(scene.model->file_range(at));
  scene.edit([](ModelEdit& edit) { edit.set_metadata("key", std::string(3000, 'v')); });
  for (std::uint32_t at = 0; at < 3; ++at)
    CHECK(scene.read(old_places[at]) == std::string(5000, static_cast<char>('a' + at)));
  CHECK(scene.model->front().map(old_places[0])->empty());

  scene.follow();
  scene.model->archive(0).end_move();
  for (std::uint32_t at = 0; at < 3; ++at) {
    CHECK(scene.model->file_range(at) != old_places[at]);
    CHECK(scene.read(scene.model->file_range(at)) == std::string(5000, static_cast<char>('a' + at)));
  }
  CHECK_FALSE(scene.model->front().map(scene.model->file_range(0u))->empty());
}

TEST_CASE("a deleted tensor that is open keeps its bytes through further edits", "[core][edit]") {
  LiveScene scene;
  scene.edit([](ModelEdit& edit) { edit.set_metadata("key", "room"); });
  scene.follow();
  scene.model->archive(0).end_move();
  const TensorId b = *scene.model->find("b");
  const ByteRange place = scene.model->file_range(b);

  ArchiveEdit edit = edit_of(scene.model->version(0));
  std::erase_if(edit.tensors, [](const EditedTensor& tensor) { return tensor.name == "b"; });
  edit.keeps_deleted = true;
  const auto planned = lay_out(scene.model->version(0), edit, false);
  REQUIRE(planned);
  CHECK(planned->size_bytes == scene.model->version(0).stamp.size_bytes);
  for (const ByteRange range : planned->given_back) CHECK(range.intersection(place).empty());
  Transaction transaction(scene.model->archive(0));
  REQUIRE(transaction.edit(edit));
  ReaderWriterLock lock;
  REQUIRE(transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; }));
  scene.follow([&](TensorId id) { return id == b; });
  CHECK_FALSE(scene.model->find("b"));
  CHECK(scene.model->has(b));
  CHECK(scene.model->tensor(b).name == "b");
  CHECK(scene.read(b) == std::string(5000, 'b'));

  // The next edit places no byte there while the bytes are kept, although it would fit.
  ArchiveEdit adds = edit_of(scene.model->version(0));
  adds.kept = {scene.model->file_range(b)};
  const std::vector<std::uint64_t> shape{4000};
  adds.tensors.push_back({"new", Dtype::U8, shape, std::nullopt});
  const auto layout = lay_out(scene.model->version(0), adds, false);
  REQUIRE(layout);
  CHECK(layout->placed[0].file_range.intersection(place).empty());
  adds.kept.clear();
  const auto reusing = lay_out(scene.model->version(0), adds, false);
  REQUIRE(reusing);
  CHECK_FALSE(reusing->placed[0].file_range.intersection(place).empty());

  // A header that needs the place of kept bytes gets EBUSY.
  ArchiveEdit grows = edit_of(scene.model->version(0));
  grows.metadata.emplace_back("long", std::string(100'000, 'x'));
  grows.kept = {{scene.model->version(0).data_offset() + 10, 100}};
  CHECK(lay_out(scene.model->version(0), grows, false).error().errno_value == EBUSY);

  scene.edit([](ModelEdit& change) { change.set_metadata("key", "again"); });
  scene.follow();
  CHECK_FALSE(scene.model->has(b));
}

TEST_CASE("tensors that make room for the header take no kept byte behind the last tensor", "[core][edit]") {
  const LiveScene scene(50'000);
  const ArchiveVersion& version = scene.model->version(0);
  ArchiveEdit edit = edit_of(version);
  std::erase_if(edit.tensors, [](const EditedTensor& tensor) { return tensor.name == "c"; });
  edit.metadata.emplace_back("key", "room");
  edit.keeps_deleted = true;
  const ByteRange kept = version.file_range(*version.find("c"));
  const auto layout = lay_out(version, edit, false);
  REQUIRE(layout);
  CHECK(layout->placed.size() == 2);
  for (const auto& placed : layout->placed) CHECK(placed.file_range.offset >= kept.end());
  for (const ByteRange range : layout->given_back) CHECK(range.intersection(kept).empty());
}
