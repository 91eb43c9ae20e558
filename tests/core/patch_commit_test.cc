// Transactions of patches: read under the locks, and committed with the state of a weight sync.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "core/commit/transaction.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::string_view kTwoTensorHeader =
    R"({"a":{"dtype":"U8","shape":[20000],"data_offsets":[0,20000]},"b":{"dtype":"U8","shape":[20000],"data_offsets":[20000,40000]}})";
constexpr std::size_t kPatchedTensorBytes = 20'000;

/// Two tensors of letters, and patches of them.
struct TwoTensors {
  explicit TwoTensors(Storage& storage = system_storage())
      : path(directory.write("m.safetensors",
                             archive_bytes(kTwoTensorHeader, std::string(2 * kPatchedTensorBytes, 'o')))),
        archive(open(storage)) {
    options.lock_patience = std::chrono::milliseconds(50);
  }
  [[nodiscard]] std::unique_ptr<Archive> open(Storage& storage = system_storage()) const {
    return Archive::open(path, Access::ReadWrite, storage).value();
  }
  /// Begins a transaction that makes each byte of `letters` one of the tensor's, at the offset.
  std::unique_ptr<Transaction> patched(Archive& of, std::string_view tensor, const std::string& letters,
                                       std::uint64_t offset) const {
    auto transaction = std::make_unique<Transaction>(of);
    const TensorId id = *of.version()->find(tensor);
    if (auto begun = transaction->begin_patches(std::array{id}, options); !begun)
      throw std::runtime_error(begun.error().message);
    const ByteRange range = of.version()->file_range(id);
    std::vector<std::byte> before(range.size_bytes);
    if (!of.read_through(before, range.offset)) throw std::runtime_error("read");
    std::vector<std::byte> after = before;
    std::ranges::copy(std::as_bytes(std::span(letters)), after.begin() + static_cast<std::ptrdiff_t>(offset));
    Transaction::Patches patches;
    if (!transaction->patch(range.offset, before, after, patches) || !transaction->keep_patches(patches))
      throw std::runtime_error("patch");
    return transaction;
  }
  Result<void> commit(Transaction& transaction) {
    return transaction.commit(options, [this](TensorId) -> ReaderWriterLock& { return lock; });
  }
  /// The data with letters at an offset.
  [[nodiscard]] static std::string with(const std::string& letters, std::uint64_t offset) {
    std::string data(2 * kPatchedTensorBytes, 'o');
    data.replace(offset, letters.size(), letters);
    return archive_bytes(kTwoTensorHeader, data);
  }
  [[nodiscard]] std::filesystem::path state() const {
    return std::filesystem::path(path).parent_path() / kSyncStateName;
  }
  void make_state_directory() const { std::filesystem::create_directory(state().parent_path()); }
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(directory.path()), {});
  }

  TemporaryDirectory directory;
  std::string path;
  std::unique_ptr<Archive> archive;
  ReaderWriterLock lock;
  CommitOptions options;
};

TEST_CASE("patches change the bytes that differ, and leave no file", "[core][transaction]") {
  TwoTensors two;
  const auto transaction = two.patched(*two.archive, "a", "new bytes", 8190);
  REQUIRE(content_of(two.path) == TwoTensors::with("", 0));
  REQUIRE(two.commit(*transaction));
  CHECK(content_of(two.path) == TwoTensors::with("new bytes", 8190));
  CHECK(two.files() == 1);
  std::vector<std::byte> scratch;
  CHECK(two.archive->read(two.archive->version()->file_range(*two.archive->version()->find("a")), scratch));
}

TEST_CASE("patches that change nothing commit nothing", "[core][transaction]") {
  TwoTensors two;
  two.make_state_directory();
  const auto transaction = two.patched(*two.archive, "a", "ooo", 5);
  CHECK_FALSE(transaction->has_patches());
  REQUIRE(transaction->replace_sync_state("{}"));
  REQUIRE(two.commit(*transaction));
  CHECK_FALSE(std::filesystem::exists(two.state()));
}

TEST_CASE("nobody else writes a patched tensor between its read and the commit", "[core][transaction]") {
  TwoTensors two;
  const auto other = two.open();
  const auto transaction = two.patched(*two.archive, "a", "first", 0);
  const auto refused = [&] {
    Transaction late(*other);
    auto stage = late.stage(*other->version()->find("a"));
    REQUIRE(stage);
    REQUIRE((*stage)->write(std::as_bytes(std::span("late", 4)), 2));
    return two.commit(late);
  };
  const auto busy = refused();
  REQUIRE_FALSE(busy);
  CHECK(busy.error().code == ErrorCode::Busy);
  Transaction late(*other);
  CHECK_FALSE(late.begin_patches(std::array{*other->version()->find("a")}, two.options));
  REQUIRE(two.commit(*transaction));
  CHECK(refused());
  CHECK(content_of(two.path) ==
        TwoTensors::with("filatet", 0).replace(8 + kTwoTensorHeader.size(), 7, "filateo"));
}

TEST_CASE("an edit waits for patches", "[core][transaction]") {
  TwoTensors two;
  const auto other = two.open();
  const auto transaction = two.patched(*two.archive, "a", "first", 0);
  ArchiveEdit edit = edit_of(*other->version());
  edit.tensors.pop_back();
  Transaction late(*other);
  auto done = late.edit(std::move(edit));
  if (done) done = two.commit(late);
  REQUIRE_FALSE(done);
  CHECK(done.error().code == ErrorCode::Busy);
  CHECK(two.commit(*transaction));
}

TEST_CASE("the sync state is made and replaced with the patches", "[core][transaction]") {
  TwoTensors two;
  two.make_state_directory();
  const auto first = two.patched(*two.archive, "a", "first", 0);
  REQUIRE(first->replace_sync_state(R"({"version":"000001"})"));
  CHECK_FALSE(std::filesystem::exists(two.state()));
  REQUIRE(two.commit(*first));
  CHECK(content_of(two.state()) == R"({"version":"000001"})");
  struct stat made {};
  REQUIRE(::stat(two.state().c_str(), &made) == 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  CHECK((made.st_mode & 0777U) == (0666U & ~mask));

  REQUIRE(::chmod(two.state().c_str(), 0640) == 0);
  const auto second = two.patched(*two.archive, "b", "second", 9);
  REQUIRE(second->replace_sync_state(R"({"version":"000002"})"));
  REQUIRE(two.commit(*second));
  CHECK(content_of(two.state()) == R"({"version":"000002"})");
  struct stat replaced {};
  REQUIRE(::stat(two.state().c_str(), &replaced) == 0);
  CHECK((replaced.st_mode & 0777U) == 0640U);
  CHECK(std::distance(std::filesystem::directory_iterator(two.state().parent_path()), {}) == 1);
}

TEST_CASE("patches are not committed if their sync state cannot be written", "[core][transaction]") {
  TwoTensors two;
  two.make_state_directory();
  const auto transaction = two.patched(*two.archive, "a", "first", 0);
  REQUIRE(transaction->replace_sync_state(R"({"version":"000001"})"));
  std::filesystem::remove_all(two.state().parent_path());
  const auto refused = two.commit(*transaction);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == ENOENT);
  CHECK(content_of(two.path) == TwoTensors::with("", 0));
  CHECK(two.archive->check_writable());
}

TEST_CASE("a sync state that somebody has changed meanwhile is not replaced", "[core][transaction]") {
  TwoTensors two;
  two.make_state_directory();
  const auto transaction = two.patched(*two.archive, "a", "first", 0);
  REQUIRE(transaction->replace_sync_state(R"({"version":"000001"})"));
  two.directory.write(std::string(kSyncStateName), R"({"version":"000007"})");
  const auto refused = two.commit(*transaction);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::ArchiveChanged);
  CHECK(content_of(two.path) == TwoTensors::with("", 0));
  CHECK(content_of(two.state()) == R"({"version":"000007"})");
}

TEST_CASE("a commit that needs what others wrote syncs it before the commit point", "[core][transaction]") {
  WatchedStorage storage;
  TwoTensors two(storage);
  two.options.durability = Durability::Process;
  const auto first = two.patched(*two.archive, "a", "first", 0);
  REQUIRE(two.commit(*first));
  two.options.durability = Durability::Power;
  const auto second = two.patched(*two.archive, "a", "second", 9000);
  storage.calls.clear();
  REQUIRE(two.commit(*second));
  const auto published = std::ranges::find(storage.calls, FileCall::Publish);
  REQUIRE(published != storage.calls.end());
  // The archive, then the journal.
  CHECK(std::count(storage.calls.begin(), published, FileCall::Sync) == 2);
}

}  // namespace
