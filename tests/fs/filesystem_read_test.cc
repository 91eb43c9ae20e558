// Reads ranges of the archive: they are never stale, never torn, and never zeros for missing bytes.
#include <atomic>
#include <thread>

#include "core/journal/journal_format.h"
#include "tests/fs/descriptor.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

Result<std::string> read_part(const DrivenFilesystem& mount, std::string_view name, std::uint64_t offset,
                              std::size_t size_bytes) {
  const auto bytes = mount->read(mount.ino(name), offset, size_bytes);
  if (!bytes) return tl::unexpected(bytes.error());
  return text_of(bytes->copy().value());
}

}  // namespace

TEST_CASE("a read gives the range asked for, less only at the end", "[fs][filesystem][read]") {
  const DrivenFilesystem mount({{"before", "xx"}, {"letters", "abcdefgh"}, {"after", "yy"}});
  CHECK(read_part(mount, "letters", 0, 8) == "abcdefgh");
  CHECK(read_part(mount, "letters", 2, 3) == "cde");
  CHECK(read_part(mount, "letters", 6, 100) == "gh");
  CHECK(read_part(mount, "letters", 8, 1) == "");
  CHECK(read_part(mount, "letters", ~std::uint64_t{0}, 100) == "");
  CHECK(read_part(mount, "letters", ~std::uint64_t{0} - 50, ~std::size_t{0}) == "");
  CHECK(read_part(mount, "letters", 1, ~std::size_t{0}) == "bcdefgh");
  CHECK(read_part(mount, "letters", 3, 0) == "");
}

TEST_CASE("a tensor without elements reads as an empty file", "[fs][filesystem][read]") {
  const DrivenFilesystem mount({{"none", ""}, {"some", "x"}, {"last", ""}});
  CHECK(mount.read("none") == "");
  CHECK(mount.read("last") == "");
}

TEST_CASE("a tensor larger than any single request reads the same in pieces", "[fs][filesystem][read]") {
  std::string content(3'000'001, '\0');
  for (std::size_t at = 0; at < content.size(); ++at) content[at] = static_cast<char>(at * 31 >> 3);
  const DrivenFilesystem mount({{"odd", "odd"}, {"large", content}});
  std::string pieces;
  while (pieces.size() < content.size()) pieces += read_part(mount, "large", pieces.size(), 131'072).value();
  CHECK(pieces == content);
}

TEST_CASE("bytes beyond the end of a cut archive are EIO, never zeros; the other tensors go on",
          "[fs][filesystem][read]") {
  const DrivenFilesystem mount({{"kept", std::string(5000, 'k')}, {"hit", std::string(5000, 'h')}});
  const std::uint64_t cut = mount.offset_of("hit") + 100;
  std::filesystem::resize_file(mount.path(), cut);
  CHECK(mount.read("kept") == std::string(5000, 'k'));
  CHECK(read_part(mount, "hit", 0, 100) == std::string(100, 'h'));
  const auto gone = read_part(mount, "hit", 0, 101);
  REQUIRE_FALSE(gone);
  CHECK(gone.error().errno_value == EIO);
  CHECK(gone.error().code == ErrorCode::ArchiveCut);
  CHECK(errno_of(read_part(mount, "hit", 4999, 1)) == EIO);
}

TEST_CASE("a hole in place of a cut tensor's pages is EIO as well", "[fs][filesystem][read]") {
  const DrivenFilesystem mount({{"hit", std::string(1'000'000, 'h')}});
  std::filesystem::resize_file(mount.path(), mount.offset_of("hit"));
  CHECK(errno_of(mount.read("hit")) == EIO);
  CHECK(errno_of(read_part(mount, "hit", 500'000, 10)) == EIO);
}

TEST_CASE_METHOD(Mounted, "what somebody else writes into the archive is read at once",
                 "[fs][filesystem][read]") {
  CHECK(mount.read("first") == std::string(16, 'A'));
  mount.overwrite(mount.offset_of("first"), "foreign");
  CHECK(mount.read("first") == "foreignAAAAAAAAA");
}

TEST_CASE("after the header was changed under a read-only mount, a tensor is read where it was, or is EIO",
          "[fs][filesystem][read]") {
  const DrivenFilesystem mount({{"first", kOld}, {"second", kSecond}, {"third", "333"}}, kReadOnly);
  const CapturedStderr captured;
  mount.overwrite(10, "irst");  // the first one is called "irstt"
  CHECK(mount->check_for_change().is_outdated);
  CHECK(captured.contains("changed the archive's header"));
  for (const auto& [name, content] : Tensors{{"first", kOld}, {"second", kSecond}, {"third", "333"}})
    CHECK(mount.read(name) == content);
  CHECK_FALSE(mount.notices_change());
  // Later writes to the archive are also visible.
  mount.overwrite(mount.offset_of("second"), "foreign");
  CHECK(mount.notices_change());
  CHECK(mount.read("second") == "foreignBBBBBBBBB");
  // The first two tensors exchange their places and have other sizes.
  const std::string other =
      archive_of({{"second", std::string(12, '2')}, {"first", std::string(20, '1')}, {"third", "333"}});
  REQUIRE(other.size() == std::filesystem::file_size(mount.path()));
  mount.overwrite(0, other);
  CHECK(mount.notices_change());
  CHECK(errno_of(mount.read("first")) == EIO);
  CHECK(errno_of(mount.read("second")) == EIO);
  CHECK(mount.read("third") == "333");
}

TEST_CASE("once no header tells where tensors are, every tensor is EIO from then on",
          "[fs][filesystem][read]") {
  const DrivenFilesystem mount;
  const std::string whole = content_of(mount.path());
  const CapturedStderr captured;
  mount.overwrite(8, "[");
  CHECK(mount.notices_change());
  for (const auto* const name : {"first", "second"}) CHECK(errno_of(mount.read(name)) == EIO);
  mount.overwrite(8, "{\"F");  // another valid header
  mount->check_for_change();
  for (const auto* const name : {"first", "second"}) CHECK(errno_of(mount.read(name)) == EIO);
  mount.overwrite(0, whole);
  mount->check_for_change();
  for (const auto* const name : {"first", "second"}) CHECK(errno_of(mount.read(name)) == EIO);
}

TEST_CASE("in the middle of another program's edit there is no header, and every tensor is read",
          "[fs][filesystem][read]") {
  const DrivenFilesystem mount(kTwoTensors, kReadOnly);
  std::string other = content_of(mount.path());
  const auto* const none = reinterpret_cast<const char*>(kNoHeaderLength.data());
  mount.overwrite(0, std::string_view(none, kNoHeaderLength.size()));
  const CapturedStderr captured;
  CHECK(mount->check_for_change().is_outdated);
  CHECK(mount.read("first") == kOld);
  // The other program's edit ends.
  other[10] = 'F';
  mount.overwrite(0, other);
  CHECK(mount->check_for_change().is_outdated);
  CHECK(mount.read("first") == kOld);
  CHECK(mount.read("second") == kSecond);
}

TEST_CASE("a replaced archive goes on being read as it was", "[fs][filesystem][read]") {
  const DrivenFilesystem mount;
  std::filesystem::rename(mount.directory().write("new", archive_of({{"first", "new"}})), mount.path());
  const auto change = mount->check_for_change();
  CHECK(change.is_outdated);
  CHECK(change.stale.what == Stale::What::Nothing);
  CHECK(mount.read("first") == std::string(16, 'A'));
  std::filesystem::remove(mount.path());
  const CapturedStderr captured;
  CHECK_FALSE(mount->check_for_change().is_outdated);
  CHECK(captured.contains("deleted"));
  CHECK(mount.read("second") == std::string(16, 'B'));
}

TEST_CASE("readers see all of a commit or nothing of it", "[fs][filesystem][read]") {
  constexpr std::size_t kSizeBytes = 256 * 1024;
  const DrivenFilesystem mount({{"hot", std::string(kSizeBytes, 'a')}, {"cold", "0123456789"}});
  std::atomic<bool> is_over = false;
  std::atomic<int> torn = 0;
  std::atomic<int> stale = 0;
  std::atomic<int> reads = 0;
  std::atomic<char> committed = 'a';  // what a read that begins now must show, or something newer
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      const Ino ino = mount.ino("hot");
      while (!is_over) {
        const char oldest = committed;
        const auto bytes = mount->read(ino, 0, kSizeBytes);
        if (!bytes || bytes->size_bytes() != kSizeBytes) {
          ++torn;
          break;
        }
        const std::string content = text_of(bytes->copy().value());
        if (content.find_first_not_of(content.front()) != std::string::npos) ++torn;
        if (content.front() < oldest) ++stale;
        ++reads;
      }
    });
  }
  for (char fill = 'b'; fill <= 'z'; ++fill) {
    Descriptor writer(mount, "hot", O_WRONLY);
    if (!writer.write(std::string(kSizeBytes, fill), 0) || !writer.close()) ++torn;
    committed = fill;
    std::this_thread::yield();
  }
  while (reads < 10 && torn == 0) std::this_thread::yield();
  is_over = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(torn == 0);
  CHECK(stale == 0);
  CHECK(mount.read("hot") == std::string(kSizeBytes, 'z'));
  CHECK(mount.read("cold") == "0123456789");
}

TEST_CASE_METHOD(Mounted, "a commit waits for the bytes that a reader still holds",
                 "[fs][filesystem][read]") {
  std::atomic<bool> is_committed = false;
  std::thread writer;
  std::string held;
  bool came_early = false;
  {
    const auto bytes = mount->read(mount.ino("first"), 0, 16);
    REQUIRE(bytes);
    writer = std::thread([&] {
      Descriptor descriptor(mount, "first", O_WRONLY);
      is_committed = descriptor.write(std::string(16, 'N'), 0) && descriptor.close();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    came_early = is_committed;
    held = text_of(bytes->copy().value());
  }
  writer.join();
  CHECK_FALSE(came_early);
  CHECK(held == std::string(16, 'A'));
  CHECK(is_committed);
  CHECK(mount.read("first") == std::string(16, 'N'));
}
