// Tests one archive: it is opened, checked, read by range and watched for changes.
#include "core/archive/archive.h"

#include "core/archive/archive_writer.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::string_view kTwoTensorHeader =
    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})";

std::string two_tensors() {
  return archive_bytes(kTwoTensorHeader, "aaaabbbb");
}

/// Returns a copy of the bytes that a reader of this range gets.
Result<std::vector<std::byte>> read(const Archive& archive, ByteRange range) {
  std::vector<std::byte> scratch;
  auto bytes = archive.read(range, scratch);
  if (!bytes) return tl::unexpected(bytes.error());
  return std::vector<std::byte>(bytes->begin(), bytes->end());
}

std::unique_ptr<Archive> open_archive(const std::string& path, Access access = Access::ReadWrite) {
  auto archive = Archive::open(path, access);
  if (!archive) throw std::runtime_error(archive.error().message);
  return std::move(*archive);
}

}  // namespace

TEST_CASE("an archive is opened with its tensors, its place and its status", "[core][archive]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a.safetensors", two_tensors());
  const auto archive = open_archive(path);
  CHECK(archive->path() == path);
  CHECK(archive->access() == Access::ReadWrite);
  CHECK(archive->tensors().size() == 2);
  CHECK(archive->header_size_bytes() == kTwoTensorHeader.size());
  CHECK(archive->data_offset() == 8 + kTwoTensorHeader.size());
  CHECK(archive->file_range({4, 4}) == ByteRange{12 + kTwoTensorHeader.size(), 4});
  CHECK(archive->opened_status().identity.size_bytes == two_tensors().size());
  CHECK(archive->identity() == archive->opened_status().identity);
}

TEST_CASE("an archive's path is absolute, its links are not resolved", "[core][archive]") {
  const TemporaryDirectory directory;
  static_cast<void>(directory.write("a.safetensors", two_tensors()));
  std::filesystem::create_symlink("a.safetensors", directory / "link");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const auto archive = open_archive("link", Access::ReadOnly);
  std::filesystem::current_path(before);
  CHECK(archive->path() == std::filesystem::path(directory / "link"));
  CHECK_FALSE(archive->check_for_change()->is_replaced);
}

TEST_CASE("ranges of the archive are read, the empty one too", "[core][archive]") {
  const TemporaryDirectory directory;
  const auto archive = open_archive(directory.write("a", two_tensors()));
  CHECK(text_of(*read(*archive, archive->file_range({0, 4}))) == "aaaa");
  CHECK(text_of(*read(*archive, archive->file_range({3, 2}))) == "ab");
  CHECK(read(*archive, archive->file_range({8, 0}))->empty());
}

TEST_CASE("archives that hold no tensor, or no data, are archives", "[core][archive]") {
  const TemporaryDirectory directory;
  CHECK(open_archive(directory.write("a", archive_bytes("{}", "")))->tensors().size() == 0);
  const auto empty_tensor = open_archive(directory.write(
      "b", archive_bytes(R"({"none":{"dtype":"F64","shape":[0,7],"data_offsets":[0,0]}})", "")));
  CHECK(read(*empty_tensor, empty_tensor->file_range({0, 0}))->empty());
}

TEST_CASE("what the archive's writer writes, the archive opens", "[core][archive]") {
  const TemporaryDirectory directory;
  const std::vector<TensorSpec> tensors = {{"one", Dtype::U8, {3}}, {"two", Dtype::I16, {2}}};
  auto writer = ArchiveWriter::create(directory / "a", tensors, {{"k", "v"}}, false);
  REQUIRE(writer);
  REQUIRE(writer->append(std::as_bytes(std::span("onetwo!", 7))));
  REQUIRE(writer->finish());
  const auto archive = open_archive(directory / "a");
  CHECK(archive->metadata()[0] == Metadata::value_type{"k", "v"});
  CHECK(archive->data_offset() % 4096 == 0);
  const auto two = archive->tensors()[*archive->tensors().find("two")];
  CHECK(text_of(*read(*archive, archive->file_range(two.data))) == "two!");
}

TEST_CASE("a file that is no archive is refused with its path and the rule it breaks", "[core][archive]") {
  const TemporaryDirectory directory;
  struct NoArchive {
    std::string content;
    ErrorCode code;
    std::string_view reason;
  };
  const std::vector<NoArchive> files = {
      {"", ErrorCode::HeaderTooSmall, "a file of 0 bytes is not an archive"},
      {"1234567", ErrorCode::HeaderTooSmall, "a file of 7 bytes is not an archive"},
      {"plain text, and long", ErrorCode::HeaderTooLarge, "not a safetensors file"},
      {"PJ\3\4" + std::string(100, '\0'), ErrorCode::InvalidHeaderLength,
       "the file ends, after 104 bytes, before its header does"},
      {"PK\3\4" + std::string(100, '\0'), ErrorCode::InvalidHeaderLength, "is a zip archive"},
      {archive_bytes(kTwoTensorHeader, "").substr(0, 50), ErrorCode::InvalidHeaderLength,
       "ends, after 50 bytes, before"},
      {archive_bytes("\xff", ""), ErrorCode::InvalidHeader, "UTF-8"},
      {archive_bytes("nonsense", ""), ErrorCode::InvalidHeaderDeserialization, "byte 0"},
      {archive_bytes(kTwoTensorHeader, "aaaabbb"), ErrorCode::MetadataIncompleteBuffer, "7"},
      {archive_bytes(kTwoTensorHeader, "aaaabbbb+"), ErrorCode::MetadataIncompleteBuffer, "9"},
  };
  for (const auto& [content, code, reason] : files) {
    const std::string path = directory.write("a", content);
    const auto archive = Archive::open(path, Access::ReadOnly);
    CAPTURE(content, name_of(code));
    REQUIRE_FALSE(archive);
    CHECK(archive.error().code == code);
    CHECK(archive.error().message.starts_with(path + ": "));
    CHECK(archive.error().message.find(reason) != std::string::npos);
  }
}

TEST_CASE("a message about a file that is no archive shows none of its bytes", "[core][archive]") {
  const TemporaryDirectory directory;
  const auto message_of = [&](const std::string& content) {
    const auto archive = Archive::open(directory.write("a", content), Access::ReadOnly);
    REQUIRE_FALSE(archive);
    return archive.error().message;
  };
  // "hunter22" read as a number of eight bytes, and bytes that can be the size of a header.
  CHECK(message_of("hunter22 is the password").find("3617569626427422056") == std::string::npos);
  CHECK(message_of("\x39\x30" + std::string(100, '\0')).find("12345") == std::string::npos);
  for (const std::string content : {"Zecret", "\xf5\xf5\xf5\xf5", "tired", "9000"}) {
    const std::string message = message_of(archive_bytes(content, "")).substr((directory / "a").size());
    CAPTURE(message);
    for (const std::string_view shown : {"Z", "f5", "found", "900"})
      CHECK(message.find(shown) == std::string::npos);
  }
}

TEST_CASE("bytes that a cut has taken are ArchiveCut, those before it are read", "[core][archive]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a", two_tensors());
  const auto archive = open_archive(path);
  std::filesystem::resize_file(path, archive->data_offset() + 5);
  CHECK(text_of(*read(*archive, archive->file_range({0, 5}))) == "aaaab");
  // The mapped bytes of the last page behind the cut are zeros: only the file's size shows the cut.
  const auto gone = read(*archive, archive->file_range({4, 2}));
  REQUIRE_FALSE(gone);
  CHECK(gone.error().code == ErrorCode::ArchiveCut);
  CHECK(gone.error().errno_value == EIO);
  CHECK(gone.error().message.starts_with(path + ": truncated"));
  std::filesystem::resize_file(path, 0);
  CHECK_FALSE(read(*archive, archive->file_range({0, 1})));
}

TEST_CASE("an archive that nobody touched has not changed", "[core][archive]") {
  const TemporaryDirectory directory;
  const auto archive = open_archive(directory.write("a", two_tensors()));
  const auto change = archive->check_for_change();
  REQUIRE(change);
  CHECK_FALSE(change->is_touched);
  CHECK_FALSE(change->is_broken);
  CHECK_FALSE(change->is_replaced);
}

TEST_CASE("a foreign write is a touch until it is adopted", "[core][archive]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a", two_tensors());
  const auto archive = open_archive(path);
  REQUIRE(archive->open_for_writing());
  REQUIRE(archive->file().write(std::as_bytes(std::span("AAAA", 4)), archive->data_offset()));
  std::filesystem::last_write_time(path,
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  CHECK(archive->check_for_change()->is_touched);
  CHECK_FALSE(archive->check_for_change()->is_broken);
  REQUIRE(archive->adopt_identity());
  CHECK_FALSE(archive->check_for_change()->is_touched);
  CHECK(archive->identity() != archive->opened_status().identity);
}

TEST_CASE("another header, or none that is whole, breaks the archive", "[core][archive]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a", two_tensors());
  const auto archive = open_archive(path);
  bool has_header = false;
  SECTION("another name") {
    std::string other = two_tensors();
    other[10] = 'A';
    std::ofstream(path, std::ios::binary) << other;
    has_header = true;
  }
  SECTION("another length") {
    std::ofstream(path, std::ios::binary) << archive_bytes("{}", "aaaabbbb");
  }
  SECTION("cut inside") {
    std::filesystem::resize_file(path, 20);
  }
  SECTION("empty") {
    std::filesystem::resize_file(path, 0);
  }
  std::filesystem::last_write_time(path,
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  const auto change = archive->check_for_change();
  REQUIRE(change);
  CHECK(change->is_touched);
  CHECK(change->is_broken);
  CHECK((change->header != nullptr) == has_header);
}

TEST_CASE("without the readers' lock no other header tells what has kept its place", "[core][archive]") {
  const TemporaryDirectory directory;
  std::string bytes = two_tensors();
  const std::string path = directory.write("a", bytes);
  const bool has_locks = GENERATE(true, false);
  FaultyStorage storage;
  if (!has_locks) storage.plan().fail_call(FileCall::Lock, 1, ENOLCK);
  const auto archive = Archive::open(path, Access::ReadOnly, storage);
  REQUIRE(archive);
  CHECK(storage.plan().failed().has_value() == !has_locks);
  bytes[10] = 'A';
  std::ofstream(path, std::ios::binary) << bytes;
  const auto change = (*archive)->check_for_change();
  REQUIRE(change);
  CHECK(change->is_broken);
  CHECK((change->header != nullptr) == has_locks);
}

TEST_CASE("another file at the path, or none, is a replacement, beside what else has changed",
          "[core][archive]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a", two_tensors());
  const auto archive = open_archive(path);
  SECTION("replaced") {
    std::filesystem::rename(directory.write("b", two_tensors()), path);
  }
  SECTION("deleted") {
    std::filesystem::remove(path);
  }
  SECTION("moved") {
    std::filesystem::rename(path, directory / "elsewhere");
  }
  SECTION("cut, then replaced") {
    std::filesystem::resize_file(path, archive->data_offset() + 5);
    std::filesystem::rename(directory.write("b", two_tensors()), path);
    CHECK(archive->check_for_change()->is_touched);
  }
  CHECK(archive->check_for_change()->is_replaced);
  CHECK_FALSE(archive->check_for_change()->is_broken);
  CHECK(text_of(*read(*archive, archive->file_range({0, 4}))) == "aaaa");
}

TEST_CASE("whatever call of opening fails, the error reaches the caller", "[core][archive]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a", two_tensors());
  unsigned failures = 0;
  for (unsigned nth = 1;; ++nth) {
    FaultyStorage storage;
    storage.plan().fail_call(nth, EIO);
    const auto archive = Archive::open(path, Access::ReadWrite, storage);
    if (!storage.plan().failed()) {
      CHECK(archive);
      break;
    }
    ++failures;
    REQUIRE_FALSE(archive);
    CHECK(archive.error().errno_value == EIO);
  }
  CHECK(failures >= 4);
}
