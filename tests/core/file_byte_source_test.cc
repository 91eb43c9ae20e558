// Reads an archive's bytes in two ways, which must give the same answers.
#include "core/storage/file_byte_source.h"

#include <sys/mman.h>

#include <cstring>
#include <string>

#include "core/archive/archive.h"
#include "core/storage/readahead.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/choices.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/plain.h"
#include "tests/support/planted_journal.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// All zeros, on a file system that the test chooses; notes what it is asked to fetch.
class OddFile final : public File {
 public:
  explicit OddFile(std::uint64_t type, int fd = -1) : type_(type), fd_(fd) {}
  Result<void> read(std::span<std::byte> to, std::uint64_t) const override {
    std::ranges::fill(to, std::byte{0});
    return {};
  }
  Result<void> write(std::span<const std::byte>, std::uint64_t) override { return {}; }
  Result<void> clone_from(const File&, std::uint64_t, ByteRange) override { return {}; }
  Result<void> reserve(ByteRange) override { return {}; }
  Result<void> sync() override { return {}; }
  void prefetch(ByteRange range) const override {
    if (!range.empty()) fetched_.push_back(range);
  }
  [[nodiscard]] std::uint64_t filesystem_type() const override { return type_; }
  [[nodiscard]] Result<FileStatus> status() const override {
    return FileStatus{.identity = {.size_bytes = kSizeBytes}};
  }
  Result<std::optional<LockConflict>> try_lock(ByteRange, LockKind) override {
    return std::optional<LockConflict>();
  }
  void unlock(ByteRange) override {}
  [[nodiscard]] std::optional<pid_t> lock_holder(ByteRange) const override { return {}; }
  [[nodiscard]] int descriptor() const override { return fd_; }

  [[nodiscard]] const std::vector<ByteRange>& fetched() const { return fetched_; }
  static constexpr std::uint64_t kSizeBytes = 1 << 30;

 private:
  const std::uint64_t type_;
  const int fd_;
  mutable std::vector<ByteRange> fetched_;
};

constexpr std::uint64_t kNfs = 0x6969;
constexpr std::uint64_t kExt4 = 0xEF53;

std::string archive_of_tensor(const std::string& data) {
  const std::string size = std::to_string(data.size());
  return archive_bytes(R"({"t":{"dtype":"U8","shape":[)" + size + R"(],"data_offsets":[0,)" + size + "]}}",
                       data);
}

std::string noise(std::size_t size_bytes) {
  RandomChoices choices(3);
  std::string text(size_bytes, '\0');
  for (char& character : text) character = static_cast<char>(choices.below(256));
  return text;
}

}  // namespace

TEST_CASE("auto reads where a map is no good, and says on what", "[core][file_byte_source]") {
  const OddFile on_nfs(kNfs);
  const auto source = FileByteSource::open(on_nfs, 100, Io::Auto);
  REQUIRE(source);
  CHECK_FALSE((*source)->is_mapped());
  CHECK((*source)->why_not_mapped() == "NFS");
}

TEST_CASE("auto maps elsewhere, and reads where nothing can be mapped", "[core][file_byte_source]") {
  const TemporaryDirectory directory;
  const auto file = system_storage().open(directory.write("f", "0123456789"), Access::ReadOnly);
  const OddFile local(kExt4, (*file)->descriptor());
  const auto mapped = FileByteSource::open(local, 10, Io::Auto);
  REQUIRE(mapped);
  CHECK((*mapped)->is_mapped());
  CHECK((*mapped)->why_not_mapped().empty());

  // A file of /proc can't be mapped.
  const auto process = system_storage().open("/proc/self/status", Access::ReadOnly);
  REQUIRE(process);
  const auto read = FileByteSource::open(**process, 10, Io::Auto);
  CAPTURE(read ? "" : read.error().message);
  REQUIRE_FALSE(FileByteSource::open(**process, 10, Io::Mmap));
  if (FileByteSource::open(**process, 10, Io::Mmap).error().errno_value == ENODEV) {
    REQUIRE(read);
    CHECK_FALSE((*read)->is_mapped());
    CHECK_FALSE((*read)->why_not_mapped().empty());
  } else {
    CHECK_FALSE(read);
  }
}

TEST_CASE("who asks for a map or for reads gets them, and no reason is named", "[core][file_byte_source]") {
  const TemporaryDirectory directory;
  const auto file = system_storage().open(directory.write("f", "0123456789"), Access::ReadOnly);
  const OddFile on_nfs(kNfs, (*file)->descriptor());
  CHECK(FileByteSource::open(on_nfs, 10, Io::Mmap).value()->is_mapped());
  const auto read = FileByteSource::open(**file, 10, Io::Pread).value();
  CHECK_FALSE(read->is_mapped());
  CHECK(read->why_not_mapped().empty());
  std::vector<std::byte> bytes(4);
  REQUIRE(read->read(bytes, 3));
  CHECK(text_of(bytes) == "3456");
}

TEST_CASE("reads in order are fetched ahead, and nothing behind the end of the file",
          "[core][file_byte_source]") {
  constexpr std::uint64_t kSize = (5 << 20) + 77;
  const OddFile file(kNfs);
  const auto source = FileByteSource::open(file, kSize, Io::Auto).value();
  std::vector<std::byte> bytes(1 << 20);
  REQUIRE(source->read(bytes, 0));
  CHECK(file.fetched().empty());
  REQUIRE(source->read(bytes, 1 << 20));
  CHECK(file.fetched() == std::vector<ByteRange>{{2 << 20, kSize - (2 << 20)}});
  REQUIRE(source->read(bytes, 2 << 20));
  CHECK(file.fetched().size() == 1);
}

TEST_CASE("both ways of reading an archive show the same bytes", "[core][file_byte_source]") {
  const TemporaryDirectory directory;
  const std::string content = archive_of_tensor(noise(300'000));
  const std::string path = directory.write("a.safetensors", content);
  const auto mapped = Archive::open(path, Access::ReadWrite, system_storage(), Io::Mmap).value();
  const auto read = Archive::open(path, Access::ReadWrite, system_storage(), Io::Pread).value();
  CHECK(mapped->bytes().is_mapped());
  CHECK_FALSE(read->bytes().is_mapped());
  RandomChoices choices(4);
  std::vector<std::byte> scratch;
  std::vector<std::byte> other;
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t offset = choices.below(content.size());
    const ByteRange range{offset, choices.below(content.size() - offset + 1)};
    const auto two = read->read(range, scratch);
    REQUIRE(two);
    REQUIRE(text_of(*two) == content.substr(range.offset, range.size_bytes));
    const auto one = mapped->map(range);
    REQUIRE(one);
    other.resize(range.size_bytes);
    REQUIRE(one->size_bytes() == range.size_bytes);
    REQUIRE(one->copy_to(other));
    REQUIRE(std::ranges::equal(other, *two));
    REQUIRE(read->map(range).value().empty());
  }
  // A later write through any file is visible to both.
  REQUIRE(mapped->open_for_writing());
  REQUIRE(mapped->file().write(std::as_bytes(std::span("NEW", 3)), content.size() - 3));
  CHECK(text_of(*read->read({content.size() - 5, 5}, scratch)).substr(2) == "NEW");
}

TEST_CASE("an archive that is cut or changed says so in both ways", "[core][file_byte_source]") {
  const Io io = GENERATE(Io::Mmap, Io::Pread);
  const TemporaryDirectory directory;
  const std::string content = archive_of_tensor(noise(20'000));
  const std::string path = directory.write("a.safetensors", content);
  const auto archive = Archive::open(path, Access::ReadWrite, system_storage(), io).value();
  const std::uint64_t cut_at = archive->data_offset() + 9'000;
  std::filesystem::resize_file(path, cut_at);
  std::vector<std::byte> scratch;
  CHECK(text_of(*archive->read({cut_at - 1000, 1000}, scratch)) == content.substr(cut_at - 1000, 1000));
  for (const ByteRange range :
       {ByteRange{cut_at - 1, 2}, ByteRange{cut_at, 1}, ByteRange{content.size() - 1, 1}}) {
    const auto check_gone = [&](const Error& gone) {
      CHECK(gone.code == ErrorCode::ArchiveCut);
      CHECK(gone.errno_value == EIO);
      CHECK(gone.message.starts_with(path + ": truncated: the file ends at byte " + std::to_string(cut_at)));
    };
    check_gone(archive->read(range, scratch).error());
    if (io == Io::Mmap) check_gone(archive->map(range).error());
    CHECK_FALSE(archive->copy_from(range, [](std::span<const std::byte>) {}));
  }
  CHECK(archive->check_for_change()->is_touched);
  CHECK_FALSE(archive->check_for_change()->is_broken);
  std::filesystem::resize_file(path, 20);
  CHECK(archive->check_for_change()->is_broken);
}

TEST_CASE("what a pending journal promises is read in both ways", "[core][file_byte_source]") {
  const Io io = GENERATE(Io::Mmap, Io::Pread);
  const TemporaryDirectory directory;
  std::string content = archive_of_tensor(noise(20'000));
  const std::string path = directory.write("a.safetensors", content);
  static_cast<void>(plant_journal(path, 8192, std::string(4096, '+')));
  const auto archive = Archive::open(path, Access::ReadOnly, system_storage(), io).value();
  content.replace(8192, 4096, 4096, '+');
  std::vector<std::byte> scratch;
  const std::uint64_t begin = archive->data_offset();
  CHECK(text_of(*archive->read({begin, content.size() - begin}, scratch)) == content.substr(begin));
  CHECK(text_of(*archive->read({10'000, 3'000}, scratch)) == content.substr(10'000, 3'000));
}

TEST_CASE("an error of the store is EIO with its reason, and the next read is made anew",
          "[core][file_byte_source]") {
  const TemporaryDirectory directory;
  const std::string content = archive_of_tensor(noise(5'000));
  const std::string path = directory.write("a.safetensors", content);
  FaultyStorage storage;
  const auto archive = Archive::open(path, Access::ReadOnly, storage, Io::Pread).value();
  std::vector<std::byte> scratch;
  const std::uint64_t at = archive->data_offset() + 10;
  for (const int why : {EIO, ESTALE, ETIMEDOUT}) {
    storage.plan().fail_call(FileCall::Read, 1, why);
    const auto failed = archive->read({at, 100}, scratch);
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == ErrorCode::System);
    CHECK(failed.error().errno_value == EIO);
    CHECK(failed.error().message.starts_with(path + ": bytes ["));
    CHECK(failed.error().message.find(std::strerror(why)) != std::string::npos);
  }
  storage.plan().set({.nth = 1, .kind = FileCall::Read, .cuts_short = true});
  CHECK(archive->read({at, 100}, scratch).error().code == ErrorCode::ArchiveCut);
  storage.plan().fail_call(0, 0);
  CHECK(text_of(*archive->read({at, 100}, scratch)) == content.substr(at, 100));
}

TEST_CASE("reading without a map asks the store for nothing but the bytes", "[core][file_byte_source]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a.safetensors", archive_of_tensor(noise(5'000)));
  FaultyStorage storage;
  const auto archive = Archive::open(path, Access::ReadOnly, storage, Io::Pread).value();
  std::vector<std::byte> scratch;
  const unsigned before = storage.plan().calls();
  REQUIRE(archive->read({archive->data_offset(), 100}, scratch));
  CHECK(storage.plan().calls() == before + 1);
}
