// Many tensors that are staged and committed together.
#include "core/commit/transaction.h"

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/planted_journal.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::string_view kThreeTensorHeader =
    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[9000],"data_offsets":[4,9004]},)"
    R"("c":{"dtype":"U8","shape":[4],"data_offsets":[9004,9008]}})";

struct ThreeTensors {
  explicit ThreeTensors(Storage& storage = system_storage())
      : path(directory.write("m.safetensors", archive_bytes(kThreeTensorHeader, std::string(9008, 'o')))),
        before(content_of(path)),
        archive(Archive::open(path, Access::ReadWrite, storage).value()),
        transaction(std::make_unique<Transaction>(*archive)) {
    options.lock_patience = std::chrono::milliseconds(50);
  }
  void write(std::string_view name, const std::string& bytes, std::uint64_t offset = 0) const {
    const auto tensor = archive->version()->find(name);
    if (!tensor) throw std::runtime_error("find");
    auto stage = transaction->stage(*tensor);
    if (!stage || !(*stage)->write(std::as_bytes(std::span(bytes)), offset))
      throw std::runtime_error("write");
  }
  Result<void> commit() {
    return transaction->commit(options, [this](TensorId) -> ReaderWriterLock& { return lock; });
  }
  int commit_errno() {
    const auto committed = commit();
    return committed ? 0 : committed.error().errno_value;
  }
  /// Returns the archive with these bytes at these offsets of its data.
  [[nodiscard]] std::string with(const std::vector<std::pair<std::uint64_t, std::string>>& changes) const {
    std::string bytes = before;
    for (const auto& [offset, text] : changes)
      bytes.replace(8 + kThreeTensorHeader.size() + offset, text.size(), text);
    return bytes;
  }
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(directory.path()), {});
  }

  TemporaryDirectory directory;
  std::string path;
  std::string before;
  std::unique_ptr<Archive> archive;
  ReaderWriterLock lock;
  CommitOptions options;
  std::unique_ptr<Transaction> transaction;
};

}  // namespace

TEST_CASE("all staged tensors change, nothing else does, and no journal stays", "[core][transaction]") {
  ThreeTensors sample;
  sample.options.durability = GENERATE(Durability::Power, Durability::Process);
  sample.write("c", "cccc");
  sample.write("a", "aa", 2);
  sample.write("b", "b", 5000);
  CHECK(sample.transaction->is_dirty());
  CHECK(content_of(sample.path) == sample.before);
  REQUIRE(sample.commit());
  CHECK_FALSE(sample.transaction->is_dirty());
  CHECK(content_of(sample.path) == sample.with({{2, "aa"}, {5004, "b"}, {9004, "cccc"}}));
  CHECK(sample.files() == 1);
  CHECK_FALSE(sample.archive->check_for_change()->is_touched);
}

TEST_CASE("a commit of nothing is nothing", "[core][transaction]") {
  ThreeTensors sample;
  REQUIRE(sample.commit());
  sample.write("a", "x");
  sample.transaction->drop(*sample.archive->version()->find("a"));
  CHECK_FALSE(sample.transaction->is_dirty());
  REQUIRE(sample.commit());
  CHECK(content_of(sample.path) == sample.before);
}

TEST_CASE("one tensor of the wrong size keeps all from changing, and may be completed",
          "[core][transaction]") {
  ThreeTensors sample;
  sample.write("a", "aaaa");
  auto stage = sample.transaction->stage(*sample.archive->version()->find("c")).value();
  REQUIRE(stage->resize(3));
  const auto committed = sample.commit();
  REQUIRE_FALSE(committed);
  CHECK(committed.error().code == ErrorCode::WrongSize);
  CHECK(committed.error().message.find("\"c\": 3 bytes were written, U8 [4] needs 4") != std::string::npos);
  CHECK(content_of(sample.path) == sample.before);
  REQUIRE(stage->write(std::as_bytes(std::span("d", 1)), 3));
  REQUIRE(sample.commit());
  CHECK(content_of(sample.path) == sample.with({{0, "aaaa"}, {9004, "oood"}}));
}

TEST_CASE("an archive that is replaced, cut or another one is not committed into", "[core][transaction]") {
  ThreeTensors sample;
  sample.write("a", "aaaa");
  SECTION("replaced") {
    static_cast<void>(sample.directory.write("new", sample.before));
    std::filesystem::rename(sample.directory / "new", sample.path);
    CHECK(sample.commit_errno() == ESTALE);
  }
  SECTION("deleted") {
    std::filesystem::remove(sample.path);
    CHECK(sample.commit_errno() == ESTALE);
    return;
  }
  SECTION("grown") {
    std::filesystem::resize_file(sample.path, sample.before.size() + 1);
    CHECK(sample.commit_errno() == EIO);
    std::filesystem::resize_file(sample.path, sample.before.size());
  }
  CHECK(content_of(sample.path) == sample.before);
}

TEST_CASE("what a dead owner has committed is finished first", "[core][transaction]") {
  ThreeTensors sample;
  sample.write("a", "aaaa");
  const std::string promised(kBlockBytes, 'p');
  plant_journal(sample.path, kBlockBytes, promised);
  bool is_told = false;
  sample.options.on_foreign_change = [&]() -> Result<void> {
    is_told = true;
    return {};
  };
  REQUIRE(sample.commit());
  CHECK(is_told);
  const std::uint64_t at = kBlockBytes - 8 - kThreeTensorHeader.size();
  CHECK(content_of(sample.path) == sample.with({{0, "aaaa"}, {at, promised}}));
  CHECK(sample.files() == 1);
}

TEST_CASE("a stopped archive takes writes again when somebody has recovered its journal",
          "[core][transaction]") {
  FaultyStorage storage;
  ThreeTensors sample(storage);
  sample.write("a", "aaaa");
  storage.plan().set({.nth = 2, .errno_value = EIO, .kind = FileCall::Sync});  // the sync of the archive
  CHECK(sample.commit_errno() == EIO);
  storage.plan().fail_call(0, 0);
  sample.transaction = std::make_unique<Transaction>(*sample.archive);
  sample.write("c", "cccc");
  CHECK(sample.commit_errno() == EIO);
  CHECK_FALSE(sample.archive->is_as_in_file());
  {
    const auto other = system_storage().open(sample.path, Access::ReadWrite).value();
    REQUIRE(recover(system_storage(), sample.path, *other));
  }
  CHECK(sample.files() == 1);
  SECTION("not before it is gone for good") {
    storage.plan().fail_call(FileCall::SyncDirectory, 1, EIO);
    CHECK(sample.commit_errno() == EIO);
    CHECK_FALSE(sample.archive->check_writable());
    storage.plan().fail_call(0, 0);
  }
  REQUIRE(sample.commit());
  CHECK(content_of(sample.path) == sample.with({{0, "aaaa"}, {9004, "cccc"}}));
  CHECK(sample.archive->is_as_in_file());
  CHECK(sample.files() == 1);
}

TEST_CASE("an archive with two hard links is not written", "[core][transaction]") {
  ThreeTensors sample;
  const std::string second = sample.directory / "second.safetensors";
  std::filesystem::create_hard_link(sample.path, second);
  sample.write("a", "abcd");
  const auto refused = sample.commit();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EMLINK);
  CHECK(refused.error().message.find("2 hard links") != std::string::npos);
  CHECK(content_of(sample.path) == sample.before);
  std::filesystem::remove(second);
  CHECK(sample.commit());
  CHECK(content_of(sample.path) == sample.with({{0, "abcd"}}));
}
