// The first write opens an archive for writing. On overlayfs this gives the file another inode. Then the
// bytes, the stamp in the journals and pinned bytes follow.
#include <sys/stat.h>

#include "core/archive/archive.h"
#include "core/commit/transaction.h"
#include "core/journal/recovery.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::string_view kCopiedHeader =
    R"({"a":{"dtype":"U8","shape":[8192],"data_offsets":[0,8192]},"b":{"dtype":"U8","shape":[4],"data_offsets":[8192,8196]}})";
constexpr std::uint64_t kBytesOfA = 8192;

/// The system's storage, except that one file is copied when it is opened for writing. A file descriptor from
/// before the copy keeps the lower file.
class LayeredStorage final : public Storage {
 public:
  LayeredStorage(std::filesystem::path merged, std::filesystem::path upper)
      : merged_(std::move(merged)), upper_(std::move(upper)) {}

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override {
    if (path == merged_ && access == Access::ReadWrite) copy_up();
    return system_storage().open(real(path), access);
  }
  Result<std::unique_ptr<File>> open_again(const File&, const std::filesystem::path& path,
                                           Access access) override {
    return open(path, access);
  }
  Result<void> check_writable(const std::filesystem::path& path) override {
    return system_storage().check_writable(real(path));
  }
  Result<std::unique_ptr<File>> open_no_link(const std::filesystem::path& path, Access access) override {
    return system_storage().open_no_link(path, access);
  }
  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& fallback) override {
    return system_storage().create_unnamed(fallback);
  }
  Result<void> publish(File& file, const std::filesystem::path& path) override {
    return system_storage().publish(file, path);
  }
  Result<void> remove(const std::filesystem::path& path) override { return system_storage().remove(path); }
  Result<void> sync_directory(const std::filesystem::path& directory) override {
    return system_storage().sync_directory(directory);
  }
  Result<std::vector<std::string>> list(const std::filesystem::path& directory,
                                        const std::string& prefix) override {
    return system_storage().list(directory, prefix);
  }
  Result<FileStatus> status(const std::filesystem::path& path) override {
    return system_storage().status(real(path));
  }

  [[nodiscard]] unsigned copies() const { return copies_; }

 private:
  [[nodiscard]] std::filesystem::path real(const std::filesystem::path& path) const {
    return path == merged_ && copies_ > 0 ? upper_ : path;
  }
  void copy_up() {
    if (copies_ > 0) return;
    std::filesystem::copy_file(merged_, upper_);
    ++copies_;
  }

  const std::filesystem::path merged_;
  const std::filesystem::path upper_;
  unsigned copies_ = 0;
};

struct Layered {
  explicit Layered(Io io = Io::Auto) {
    std::filesystem::create_directory(directory / "upper");
    archive = Archive::open(path, Access::ReadWrite, storage, io).value();
  }
  Result<void> put(std::string_view name, std::string_view bytes) {
    auto stage = transaction().stage(*archive->version()->find(name));
    if (!stage) return pass_on(std::move(stage));
    if (auto written = (*stage)->write(std::as_bytes(std::span(bytes)), 0); !written) return written;
    auto committed = transaction().commit({}, [this](TensorId) -> ReaderWriterLock& { return lock; });
    transaction_.reset();
    return committed;
  }
  Transaction& transaction() {
    if (!transaction_) transaction_.emplace(*archive);
    return *transaction_;
  }
  [[nodiscard]] std::string text(std::span<const std::byte> bytes) const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] std::string read(std::string_view name) const {
    std::vector<std::byte> scratch;
    const auto range = archive->file_range(archive->tensors()[*archive->tensors().find(name)].data);
    return text(archive->read(range, scratch).value());
  }

  TemporaryDirectory directory;
  const std::string original = archive_bytes(kCopiedHeader, std::string(kBytesOfA, 'a') + "bbbb");
  const std::string path = directory.write("m.safetensors", original);
  const std::string copy = directory / "upper/m.safetensors";
  LayeredStorage storage{path, copy};
  ReaderWriterLock lock;
  std::unique_ptr<Archive> archive;
  std::optional<Transaction> transaction_;
};

}  // namespace

TEST_CASE("opening, reading and looking do not open an archive for writing", "[core][archive]") {
  Layered layered(GENERATE(Io::Mmap, Io::Pread));
  CHECK(layered.archive->access() == Access::ReadWrite);
  CHECK(layered.read("b") == "bbbb");
  CHECK_FALSE(layered.archive->check_for_change()->is_touched);
  const Transaction idle(*layered.archive);
  CHECK(layered.storage.copies() == 0);
}

TEST_CASE("the first write copies the archive up, and everything follows to the copy", "[core][archive]") {
  Layered layered(GENERATE(Io::Mmap, Io::Pread));
  const FileIdentity before = layered.archive->identity();
  CHECK(layered.read("a") == std::string(kBytesOfA, 'a'));
  for (const std::string_view bytes : {"new1", "new2", "new3"}) {
    REQUIRE(layered.put("b", bytes));
    CHECK(layered.read("b") == bytes);
    CHECK(layered.read("a") == std::string(kBytesOfA, 'a'));
    const auto change = layered.archive->check_for_change();
    CHECK_FALSE(change->is_replaced);
    CHECK_FALSE(change->is_touched);
  }
  CHECK(layered.storage.copies() == 1);
  CHECK_FALSE(layered.archive->identity().same_file(before));
  CHECK(content_of(layered.path) == layered.original);
  CHECK(content_of(layered.copy).ends_with("new3"));
}

TEST_CASE("a span of the map stays where it is when the archive is copied up", "[core][archive]") {
  Layered layered(Io::Mmap);
  const auto held = layered.archive->bytes().map(layered.archive->file_range({kBytesOfA, 4})).value();
  std::vector<std::byte> bytes(held.size_bytes());
  REQUIRE(held.copy_to(bytes));
  CHECK(layered.text(bytes) == "bbbb");
  REQUIRE(layered.put("b", "next"));
  REQUIRE(held.copy_to(bytes));
  CHECK(layered.text(bytes) == "next");
}

TEST_CASE("the journals of a copied archive name the copy", "[core][archive]") {
  Layered layered;
  REQUIRE(layered.archive->open_for_writing());
  const auto copy = system_storage().status(layered.copy).value();
  CHECK(layered.archive->stamp().inode == copy.identity.inode);
  CHECK(layered.archive->stamp().size_bytes == layered.original.size());
}

TEST_CASE("a copy-up is a new version, and who has pinned the one before keeps it", "[core][archive]") {
  Layered layered;
  auto pinned = layered.archive->version();
  const ArchiveStamp before = pinned->stamp;
  REQUIRE(layered.archive->open_for_writing());
  const auto now = layered.archive->version();
  CHECK(pinned->stamp.inode == before.inode);
  CHECK(now->stamp.inode != before.inode);
  CHECK(now->header == pinned->header);
  CHECK(now->bytes == pinned->bytes);
  const std::weak_ptr<const ArchiveVersion> last = pinned;
  pinned.reset();
  CHECK(last.expired());
}

TEST_CASE("a second opening for writing changes nothing", "[core][archive]") {
  Layered layered;
  REQUIRE(layered.archive->open_for_writing());
  const auto version = layered.archive->version();
  REQUIRE(layered.archive->open_for_writing());
  CHECK(layered.archive->version() == version);
}

TEST_CASE("an archive without layers that was replaced is opened again, not its successor",
          "[core][archive]") {
  const TemporaryDirectory directory;
  const std::string bytes = archive_bytes(kCopiedHeader, std::string(kBytesOfA, 'a') + "bbbb");
  const std::string path = directory.write("m.safetensors", bytes);
  const auto archive = Archive::open(path, Access::ReadWrite).value();
  const FileIdentity before = archive->identity();
  std::filesystem::rename(directory.write("other", bytes), path);
  REQUIRE(archive->open_for_writing());
  CHECK(archive->identity() == before);
  CHECK(archive->file().status()->identity.inode == before.inode);
  CHECK(archive->check_for_change()->is_replaced);
}

TEST_CASE("an archive that was opened for reading is not opened for writing", "[core][archive]") {
  const TemporaryDirectory directory;
  const auto archive =
      Archive::open(directory.write("m", archive_bytes(kCopiedHeader, std::string(kBytesOfA + 4, 'a'))),
                    Access::ReadOnly)
          .value();
  CHECK(archive->open_for_writing().error().errno_value == EROFS);
}
