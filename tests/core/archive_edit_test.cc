// Tests where an edit places bytes, and which edits are refused.
#include "core/commit/archive_edit.h"

#include <deque>

#include "core/commit/transaction.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Three tensors of 5000 bytes. If `has_room`, the header has 64 KiB of room.
struct EditScene {
  explicit EditScene(bool has_room) {
    const Tensors tensors = {
        {"a", std::string(5000, 'a')}, {"b", std::string(5000, 'b')}, {"c", std::string(5000, 'c')}};
    std::string bytes = archive_of(tensors);
    if (has_room) {
      const std::size_t header = bytes.find('}', bytes.rfind("data_offsets")) + 2;
      bytes = archive_bytes(bytes.substr(8, header - 8) + std::string(65'536, ' '), bytes.substr(header));
    }
    path = directory.write("m.safetensors", bytes);
    open();
  }
  void open() {
    archive.reset();
    archive = Archive::open(path, Access::ReadWrite).value();
    if (!archive->open_for_writing()) throw std::runtime_error("open");
  }
  [[nodiscard]] ArchiveEdit edit() const { return edit_of(*archive->version()); }
  [[nodiscard]] Result<EditLayout> plan(const ArchiveEdit& edit, bool is_read_elsewhere = false) const {
    return lay_out(*archive->version(), edit, is_read_elsewhere);
  }
  void commit(ArchiveEdit edit) {
    Transaction transaction(*archive);
    ReaderWriterLock lock;
    if (!transaction.edit(std::move(edit))) throw std::runtime_error("edit");
    if (!transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; }))
      throw std::runtime_error("commit");
    open();
  }

  TemporaryDirectory directory;
  std::string path;
  std::unique_ptr<Archive> archive;
};

}  // namespace

TEST_CASE("a deleted tensor leaves a filler, which the next new one takes", "[core][edit]") {
  EditScene scene(true);
  const ByteRange place = scene.archive->version()->file_range(TensorId{1});
  ArchiveEdit edit = scene.edit();
  edit.tensors.erase(edit.tensors.begin() + 1);
  const auto layout = scene.plan(edit);
  REQUIRE(layout);
  CHECK(layout->fillers == std::vector{place});
  CHECK(layout->header.find("\"__safetensorsfs.free.0\":{\"dtype\":\"U8\",\"shape\":[5000]") !=
        std::string::npos);
  CHECK(layout->placed.empty());
  CHECK(layout->size_bytes == scene.archive->stamp().size_bytes);
  scene.commit(edit);
  CHECK(scene.archive->tensors().size() == 2);
  CHECK(scene.archive->version()->header->content.fillers.size() == 1);

  edit = scene.edit();
  const std::vector<std::uint64_t> fits{4000};
  const std::vector<std::uint64_t> does_not_fit{6000};
  edit.tensors.push_back({"new", Dtype::U8, fits, std::nullopt});
  CHECK(scene.plan(edit)->size_bytes == scene.archive->stamp().size_bytes);
  CHECK(place.contains(scene.plan(edit)->placed[0].file_range));
  // A reader of the version before the deletion may still read these bytes.
  CHECK(scene.plan(edit, true)->size_bytes > scene.archive->stamp().size_bytes);
  edit.tensors.back().shape = does_not_fit;
  CHECK(scene.plan(edit)->placed[0].file_range.offset >= scene.archive->stamp().size_bytes);
}

TEST_CASE("the archive becomes shorter where its last tensor is deleted, unless somebody reads it",
          "[core][edit]") {
  EditScene scene(true);
  ArchiveEdit edit = scene.edit();
  edit.tensors.pop_back();
  CHECK(scene.plan(edit)->size_bytes == scene.archive->stamp().size_bytes - 5000);
  CHECK(scene.plan(edit)->needs_all_readers_out);
  CHECK(scene.plan(edit, true)->size_bytes == scene.archive->stamp().size_bytes);
  CHECK_FALSE(scene.plan(edit, true)->needs_all_readers_out);
}

TEST_CASE("a header without room takes the place of the first tensors, and has room then", "[core][edit]") {
  EditScene scene(false);
  ArchiveEdit edit = scene.edit();
  edit.tensors[1].name = "a longer name than before";
  const auto refused = scene.plan(edit, true);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EBUSY);
  CHECK(scene.plan(edit)->placed.size() == 3);
  scene.commit(edit);
  CHECK(scene.archive->data_offset() % 4096 == 0);
  CHECK(scene.archive->header_size_bytes() > 64 * 1024);
  edit = scene.edit();
  edit.tensors[0].name = "another name that is longer";
  CHECK(scene.plan(edit, true)->placed.empty());
}

TEST_CASE("an edit that makes the archive longer has bytes for all of it", "[core][edit]") {
  // Recovery refuses any other size. A new tensor of this size ends behind the new begin of the data.
  const std::uint64_t size_bytes = GENERATE(1U, 50'000U, 100'000U, 1'000'000U);
  const std::uint64_t more = GENERATE(0U, 1U, 100U);  // new tensors, which end behind that place in any case
  EditScene scene(false);
  ArchiveEdit edit = scene.edit();
  const std::vector<std::uint64_t> shape{size_bytes};
  const std::vector<std::uint64_t> small{100};
  std::deque<std::string> names;
  edit.tensors.push_back({"new", Dtype::U8, shape, std::nullopt});
  for (std::uint64_t at = 0; at < more; ++at)
    edit.tensors.push_back({names.emplace_back("more" + std::to_string(at)), Dtype::U8, small, std::nullopt});
  const auto layout = scene.plan(edit);
  REQUIRE(layout);
  std::uint64_t end = layout->header.size();
  for (const EditLayout::Placed& placed : layout->placed) {
    CHECK(placed.file_range.offset - end < 8);
    end = placed.file_range.end();
  }
  CHECK(layout->size_bytes == end);
  CHECK(layout->placed.size() == 4 + more);
}

TEST_CASE("an edit that recovery would refuse is not committed", "[core][edit]") {
  const EditScene scene(true);
  const std::string before = content_of(scene.path);
  EditLayout layout = scene.plan(scene.edit()).value();
  layout.size_bytes += 20'000;
  Transaction transaction(*scene.archive);
  ReaderWriterLock lock;
  REQUIRE(transaction.edit(scene.edit(), std::move(layout)));
  const auto done = transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; });
  CHECK(errno_of(done) == EINVAL);
  CHECK(content_of(scene.path) == before);
}

TEST_CASE("an edit that makes no sense is refused with its reason", "[core][edit]") {
  const EditScene scene(true);
  ArchiveEdit edit = scene.edit();
  const auto why = [&] { return text_of(scene.plan(edit).error()); };
  SECTION("a reserved name") {
    edit.tensors[0].name = "__safetensorsfs.free.7";
    CHECK(why().find("are reserved") != std::string::npos);
  }
  SECTION("another size") {
    const std::vector<std::uint64_t> shape{4999};
    edit.tensors[0].shape = shape;
    CHECK(why().find("U8 [4999] needs 4999 bytes, its data has 5000") != std::string::npos);
  }
  SECTION("the same data twice") {
    edit.tensors[1].from = edit.tensors[0].from;
    CHECK(why().find("its data is taken over twice") != std::string::npos);
  }
  SECTION("the same name twice") {
    edit.tensors[1].name = edit.tensors[0].name;
    CHECK(scene.plan(edit).error().code == ErrorCode::DuplicateKey);
  }
  SECTION("no UTF-8") {
    edit.metadata.emplace_back("key", "\xff");
    CHECK(why().find("is not UTF-8") != std::string::npos);
  }
  SECTION("a shape that overflows") {
    const std::vector<std::uint64_t> shape{~std::uint64_t{0}, 2};
    edit.tensors.push_back({"new", Dtype::F64, shape, std::nullopt});
    CHECK(scene.plan(edit).error().code == ErrorCode::ValidationOverflow);
  }
  SECTION("a header over the limit") {
    edit.metadata.emplace_back("key", std::string(100'000'000, 'x'));
    CHECK(scene.plan(edit).error().code == ErrorCode::HeaderTooLarge);
  }
}
