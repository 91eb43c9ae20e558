// The steps of a compaction: which bytes each step copies to which place, and that the steps end.
#include "core/commit/compaction.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/commit/transaction.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Tensors of these sizes, beginning with "a". If `has_room`, the header has room.
struct CompactionScene {
  explicit CompactionScene(const std::vector<std::size_t>& sizes, bool has_room = true) {
    Tensors tensors;
    char name = 'a';
    for (const std::size_t size : sizes) {
      tensors.emplace_back(std::string(1, name), std::string(size, name));
      ++name;
    }
    std::string bytes = archive_of(tensors);
    if (has_room) {
      const std::size_t header = bytes.find('}', bytes.rfind("data_offsets")) + 2;
      bytes = archive_bytes(bytes.substr(8, header - 8) + std::string(65'536, ' '), bytes.substr(header));
    }
    path = directory.write("m.safetensors", bytes);
  }
  [[nodiscard]] std::unique_ptr<Archive> open() const {
    return Archive::open(path, Access::ReadWrite).value();
  }
  void remove(const std::string& names) const {
    const auto archive = open();
    ArchiveEdit edit = edit_of(*archive->version());
    std::erase_if(edit.tensors,
                  [&](const EditedTensor& t) { return names.find(t.name) != std::string::npos; });
    Transaction transaction(*archive);
    ReaderWriterLock lock;
    REQUIRE(transaction.edit(std::move(edit)));
    REQUIRE(transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; }));
  }
  /// Returns the number of steps. Each tensor must have its bytes after each of them.
  [[nodiscard]] std::uint64_t compact() const {
    for (std::uint64_t steps = 0; steps < 1000; ++steps) {
      const auto archive = open();
      std::vector<std::byte> scratch;
      for (std::uint32_t at = 0; at < archive->tensors().size(); ++at) {
        const Tensor tensor = archive->tensors()[at];
        const auto bytes = archive->read(archive->version()->file_range(tensor.data), scratch);
        REQUIRE(bytes);
        const auto letter = static_cast<std::byte>(tensor.name.front());
        REQUIRE(std::ranges::all_of(*bytes, [&](std::byte byte) { return byte == letter; }));
      }
      const auto done = compact_once(*archive, {});
      REQUIRE(done);
      if (!*done) return steps;
    }
    FAIL("no end");
    return 0;
  }

  TemporaryDirectory directory;
  std::string path;
};

}  // namespace

TEST_CASE("tensors that fit the gap are copied to it in one step, without the journal",
          "[core][compaction]") {
  const CompactionScene scene({9000, 4000, 5000});
  scene.remove("a");
  const auto archive = scene.open();
  const std::uint64_t data_at = archive->version()->data_offset();
  const auto step = next_compaction_step(*archive->version());
  REQUIRE(step);
  REQUIRE(step->has_value());
  const EditLayout& layout = (*step)->layout;
  REQUIRE(layout.copies.size() == 1);
  CHECK(layout.copies[0].from == data_at + 9000);
  CHECK(layout.copies[0].to == data_at);
  CHECK(layout.copies[0].size_bytes == 9000);
  CHECK(layout.placed.empty());
  CHECK(layout.size_bytes == data_at + 9000);
  const auto forecast = forecast_compaction(*archive->version());
  REQUIRE(forecast);
  CHECK(forecast->steps == 1);
  CHECK(forecast->moved_bytes == 9000);
  CHECK(forecast->freed_bytes == 9000);
}

TEST_CASE("the last tensors go to a gap that they fill exactly, and all others stay", "[core][compaction]") {
  const auto forecast_of = [](const CompactionScene& scene) {
    return forecast_compaction(*scene.open()->version()).value();
  };
  SECTION("one of them") {
    const CompactionScene scene({9000, 5000, 9000, 9000, 5000});
    scene.remove("b");
    CHECK(forecast_of(scene).steps == 1);
    CHECK(forecast_of(scene).moved_bytes == 5000);
    CHECK(scene.compact() == 1);
    const auto archive = scene.open();
    CHECK(archive->stamp().size_bytes == archive->version()->data_offset() + 32'000);
    CHECK(archive->version()->header->content.fillers.empty());
  }
  SECTION("several of them, and what lies behind follows") {
    const CompactionScene scene({4000, 2000, 9000, 9000, 9000, 9000, 4000, 2000, 800});
    scene.remove("ab");
    CHECK(forecast_of(scene).moved_bytes == 6800);
    CHECK(scene.compact() == 2);
  }
  SECTION("where that does not spare half of the bytes, the order stays") {
    const CompactionScene scene({5000, 1000, 5000});
    scene.remove("a");
    CHECK(forecast_of(scene).moved_bytes > 5000);
    CHECK(scene.compact() > 1);
    const auto archive = scene.open();
    const Tensor last = archive->tensors()[archive->tensors().size() - 1];
    CHECK(last.name == "c");
  }
  SECTION("where alignment leaves too little room, they stay") {
    std::vector<std::size_t> sizes = {5001, 9000, 9000, 9000, 5000, 5};
    const CompactionScene scene(sizes);
    scene.remove("a");
    CHECK(forecast_of(scene).moved_bytes > 0);
    CHECK(scene.compact() > 0);
  }
}

TEST_CASE("the forecast says what all steps write and free", "[core][compaction]") {
  const bool has_room = GENERATE(true, false);
  const std::vector<std::size_t> sizes =
      GENERATE(std::vector<std::size_t>{9000, 4000, 5000}, std::vector<std::size_t>{5000, 1000, 50'000, 5000},
               std::vector<std::size_t>{100, 70'000, 3, 70'000, 70'001, 12, 9000});
  CAPTURE(has_room, sizes);
  const CompactionScene scene(sizes, has_room);
  scene.remove("a");
  const CompactionForecast forecast = forecast_compaction(*scene.open()->version()).value();
  const std::uint64_t size_before = scene.open()->stamp().size_bytes;
  std::uint64_t steps = 0;
  std::uint64_t written_bytes = 0;
  for (;; ++steps) {
    const auto archive = scene.open();
    const auto step = next_compaction_step(*archive->version()).value();
    if (!step) break;
    for (const EditLayout::Copy& copy : step->layout.copies) written_bytes += copy.size_bytes;
    for (const EditLayout::Placed& placed : step->layout.placed)
      written_bytes += 2 * placed.file_range.size_bytes;
    REQUIRE(compact_once(*archive, {}).value());
  }
  CHECK(forecast.steps == steps);
  CHECK(forecast.moved_bytes == written_bytes);
  const std::uint64_t size_after = scene.open()->stamp().size_bytes;
  CHECK(forecast.freed_bytes == size_before - std::min(size_before, size_after));
}

TEST_CASE("a tensor that is larger than the gap is never copied over itself", "[core][compaction]") {
  const CompactionScene scene({100, 9000, 9000, 50, 9000});
  scene.remove("a");
  {
    const auto archive = scene.open();
    const auto step = next_compaction_step(*archive->version());
    REQUIRE((step && *step));
    CHECK((*step)->layout.copies.empty());
    REQUIRE((*step)->layout.placed.size() == 1);
    CHECK((*step)->layout.placed[0].file_range.offset >= archive->stamp().size_bytes);
  }
  CHECK(scene.compact() > 2);
  const auto archive = scene.open();
  CHECK(archive->stamp().size_bytes == archive->version()->data_offset() + 27'050);
  CHECK(archive->version()->header->content.fillers.empty());
}

TEST_CASE("a tensor goes to a later gap, if there is one, and not to the end", "[core][compaction]") {
  const CompactionScene scene({100, 5000, 3000, 9500, 2000});
  scene.remove("ad");
  const auto archive = scene.open();
  const auto step = next_compaction_step(*archive->version());
  REQUIRE((step && *step));
  REQUIRE((*step)->layout.copies.size() == 1);
  CHECK((*step)->layout.copies[0].to > archive->version()->data_offset() + 8100);
  CHECK((*step)->layout.size_bytes == archive->stamp().size_bytes);
}

TEST_CASE("a forecast tells the steps that follow, also without room in the header", "[core][compaction]") {
  for (const bool has_room : {true, false}) {
    for (const char* removed : {"a", "b", "ac", "bd", "abcd", "e", "abcde"}) {
      const CompactionScene scene({300, 9000, 41, 7000, 3000}, has_room);
      scene.remove(removed);
      const auto forecast = forecast_compaction(*scene.open()->version());
      REQUIRE(forecast);
      const std::uint64_t before_bytes = scene.open()->stamp().size_bytes;
      CHECK(scene.compact() == forecast->steps);
      const std::uint64_t after_bytes = scene.open()->stamp().size_bytes;
      CHECK(forecast->freed_bytes == before_bytes - std::min(before_bytes, after_bytes));
      CHECK(forecast_compaction(*scene.open()->version())->steps == 0);
    }
  }
}

TEST_CASE("a compaction waits for other readers to end, and a callback ends it", "[core][compaction]") {
  const CompactionScene scene({9000, 4000});
  scene.remove("a");
  {
    const auto reader = scene.open();
    const auto refused = compact_once(*scene.open(), {});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().errno_value == EBUSY);
    CHECK(contains(refused.error().message, "has the archive open"));
  }
  CommitOptions options;
  options.on_copy = [](std::uint64_t) -> Result<void> { return fail(ErrorCode::System, EINTR, "enough"); };
  const auto ended = compact_once(*scene.open(), options);
  REQUIRE_FALSE(ended);
  CHECK(ended.error().errno_value == EINTR);
  CHECK(scene.open()->version()->header->content.fillers.size() == 1);
  CHECK(scene.compact() == 1);
}

TEST_CASE("gaps that a plan leaves stay in their places in all steps", "[core][compaction]") {
  const CompactionScene scene({300, 9000, 41, 7000, 3000, 800});
  scene.remove("ace");
  const auto fillers_now = [&scene] {
    const auto version = scene.open()->version();
    std::vector<ByteRange> fillers;
    for (const ByteRange filler : version->header->content.fillers)
      fillers.push_back(version->file_range(filler));
    return fillers;
  };
  REQUIRE(fillers_now().size() == 3);
  const std::vector<ByteRange> left = {fillers_now().front()};
  std::uint64_t steps = 0;
  while (compact_once(*scene.open(), {}, left).value()) REQUIRE(++steps < 100);
  CHECK(steps > 0);
  CHECK(fillers_now() == left);
  CHECK(scene.compact() > 0);
}

namespace {

/// Writes an archive of empty space, in which half of the tensors have a filler before them.
std::string write_many_gaps(const TemporaryDirectory& directory, std::uint64_t tensors) {
  std::string json = "{";
  std::uint64_t end = 0;
  const auto add = [&](const std::string& name, std::uint64_t size_bytes) {
    json += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})",
                        json.size() > 1 ? "," : "", name, size_bytes, end, end + size_bytes);
    end += size_bytes;
  };
  for (std::uint64_t at = 0; at < tensors; ++at) {
    if (at % 2 == 0) add(fmt::format("__safetensorsfs.free.{}", at), 8 * (1 + at * 7919 % 1000));
    add(fmt::format("t{}", at), 8 * (1 + at * 104'729 % 1000));
  }
  json += "}";
  json.append(65'536 - json.size() % 8, ' ');
  const std::string path = directory.write("many.safetensors", archive_bytes(json, ""));
  std::filesystem::resize_file(path, 8 + json.size() + end);
  return path;
}

}  // namespace

TEST_CASE("thousands of gaps are planned once, and a check ends each plan", "[core][compaction]") {
  const TemporaryDirectory directory;
  const std::string path = write_many_gaps(directory, 20'000);
  const auto archive = Archive::open(path, Access::ReadWrite).value();
  const auto before = archive->version();
  CommitOptions options;
  options.on_copy = [](std::uint64_t) -> Result<void> { return fail(ErrorCode::System, EINTR, "enough"); };
  const auto check = [&options] { return options.on_copy(0); };
  for (const Gaps gaps : {Gaps::All, Gaps::Cheap}) {
    const auto ended = forecast_compaction(*before, gaps, check);
    REQUIRE_FALSE(ended);
    CHECK(ended.error().errno_value == EINTR);
  }
  CHECK_FALSE(next_compaction_step(*before, {}, check));
  const auto stopped = compact_once(*archive, options);
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().errno_value == EINTR);
  CHECK(archive->version() == before);

  const auto forecast = forecast_compaction(*before, Gaps::Cheap).value();
  CHECK(forecast.steps > 0);
  CHECK(forecast.steps < 256);
  CHECK(forecast.left.size() > 9'900);
  REQUIRE(close_cheap_gaps(*archive, forecast, {}));
  const auto after = archive->version();
  CHECK(after->tensors().size() == 20'000);
  std::vector<ByteRange> fillers;
  for (const ByteRange filler : after->header->content.fillers) fillers.push_back(after->file_range(filler));
  CHECK(fillers == forecast.left);
}
