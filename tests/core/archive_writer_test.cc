// core/archive/archive_writer.h and core/storage/file_attributes.h
#include "core/archive/archive_writer.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <utility>

#include "support/catch.h"
#include "support/plain.h"
#include "support/temporary_directory.h"

using namespace stfs;
using stfs::test::content_of;
using stfs::test::count_files;
using stfs::test::TemporaryDirectory;

namespace {

const std::vector<TensorSpec> kTensors = {{"w", Dtype::F32, {2}}, {"b", Dtype::U8, {3}}};
constexpr std::string_view kElevenBytes = "0123456789A";

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

Result<ArchiveWriter> start(const std::filesystem::path& path, bool replace = false) {
  return ArchiveWriter::create(path, kTensors, {{"k", "v"}}, replace);
}

Result<void> write_whole(const std::filesystem::path& path, bool replace = false) {
  auto writer = start(path, replace);
  if (!writer) return pass_on(std::move(writer));
  if (auto ok = writer->append(bytes(kElevenBytes)); !ok) return ok;
  return writer->finish();
}

/// A place for a new archive, in a temporary directory.
struct Target {
  TemporaryDirectory directory;
  std::string path = directory / "a.safetensors";
};

struct stat status_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status;
}

}  // namespace

TEST_CASE_METHOD(Target, "an archive is written whole, its data on a page, with room for its header",
                 "[core][archive_writer]") {
  REQUIRE(write_whole(path));
  const std::string content = content_of(path);
  const auto length = header_length(bytes(content).first(8), content.size());
  REQUIRE(length);
  const auto header =
      parse_header(std::string_view(content).substr(8, *length), content.size() - 8 - *length);
  REQUIRE(header);
  CHECK(header->metadata == Metadata{{"k", "v"}});
  CHECK(header->tensors[0].name == "w");
  CHECK(header->tensors[1].data == ByteRange{8, 3});
  CHECK((8 + *length) % 4096 == 0);
  CHECK(*length >= 65536);
  CHECK(content.substr(8 + *length) == kElevenBytes);
  CHECK(count_files(directory.path()) == 1);
}

TEST_CASE_METHOD(Target, "data may come in any pieces", "[core][archive_writer]") {
  const std::vector<TensorSpec> tensors = {{"big", Dtype::U8, {1'000'000}}};
  std::string data(1'000'000, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 >> 3);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{4097}, std::size_t{300'000}, data.size()}) {
    CAPTURE(piece);
    auto writer = ArchiveWriter::create(path, tensors, {}, true);
    REQUIRE(writer);
    bool ok = true;
    for (std::size_t at = 0; at < data.size(); at += piece) {
      ok = ok && writer->append(bytes(std::string_view(data).substr(at, piece)));
    }
    REQUIRE(ok);
    REQUIRE(writer->finish());
    const std::string content = content_of(path);
    CHECK(content.size() > data.size());
    CHECK(content.substr(content.size() - data.size()) == data);
  }
}

TEST_CASE_METHOD(Target, "until it is finished an archive has no name, and nothing is left of one given up",
                 "[core][archive_writer]") {
  {
    auto writer = start(path);
    REQUIRE(writer);
    REQUIRE(writer->append(bytes("0123")));
    CHECK(!std::filesystem::exists(path));
    REQUIRE(count_files(directory.path()) == 1);
    const auto temporary = std::filesystem::directory_iterator(directory.path())->path();
    CHECK(temporary.extension() != ".safetensors");
  }
  CHECK(count_files(directory.path()) == 0);
}

TEST_CASE_METHOD(Target, "a writer that was moved from removes nothing", "[core][archive_writer]") {
  auto first = start(path);
  REQUIRE(first);
  {
    ArchiveWriter second = std::move(*first);
    REQUIRE(second.append(bytes(kElevenBytes)));
    first = fail(ErrorCode::NotFound, ENOENT, "gone");  // destroys the writer moved from
    CHECK(count_files(directory.path()) == 1);
    REQUIRE(second.finish());
  }
  CHECK(std::filesystem::exists(path));
}

TEST_CASE_METHOD(Target, "too few data, too many, or data after a failure are refused and leave nothing",
                 "[core][archive_writer]") {
  auto few = start(path);
  REQUIRE(few);
  REQUIRE(few->append(bytes("0123")));
  const auto unfinished = few->finish();
  REQUIRE(!unfinished);
  CHECK(unfinished.error().code == ErrorCode::WrongSize);
  CHECK(unfinished.error().message == path + ": finish: 4 bytes of data were written, expected 11");
  CHECK(!few->append(bytes("4")));
  CHECK(!few->finish());
  auto many = start(path);
  REQUIRE(many);
  const auto added = many->append(bytes("0123456789ABC"));
  REQUIRE(!added);
  CHECK(added.error().code == ErrorCode::WrongSize);
  CHECK(!many->finish());
  CHECK(count_files(directory.path()) == 0);
}

TEST_CASE("an existing file is kept unless it is to be replaced", "[core][archive_writer]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a.safetensors", "precious");
  const auto refused = write_whole(path);
  REQUIRE(!refused);
  CHECK(refused.error().errno_value == EEXIST);
  CHECK(refused.error().message.find(path) == 0);
  CHECK(content_of(path) == "precious");
  REQUIRE(write_whole(path, true));
  CHECK(content_of(path).size() > 65536);
}

TEST_CASE_METHOD(Target, "a file that appears meanwhile is not overwritten", "[core][archive_writer]") {
  auto writer = start(path);
  REQUIRE(writer);
  REQUIRE(writer->append(bytes(kElevenBytes)));
  directory.write("a.safetensors", "precious");
  const auto refused = writer->finish();
  REQUIRE(!refused);
  CHECK(refused.error().errno_value == EEXIST);
  CHECK(content_of(path) == "precious");
  CHECK(count_files(directory.path()) == 1);
}

TEST_CASE("a replaced file's mode, owner and attributes stay", "[core][archive_writer]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a.safetensors", "old");
  REQUIRE(::chmod(path.c_str(), 07640) == 0);  // set-id bits and the sticky bit are left out
  const bool has_attributes = ::setxattr(path.c_str(), "user.origin", "here", 4, 0) == 0;
  const bool is_root = ::geteuid() == 0 && ::chown(path.c_str(), 4321, 8765) == 0;
  REQUIRE(write_whole(path, true));
  const struct stat status = status_of(path);
  CHECK((status.st_mode & 07777) == 0640);
  if (is_root) {
    CHECK(status.st_uid == 4321);
    CHECK(status.st_gid == 8765);
  }
  if (has_attributes) {
    char value[8] = {};
    CHECK(::getxattr(path.c_str(), "user.origin", value, sizeof value) == 4);
    CHECK(std::string(value) == "here");
  }
}

TEST_CASE("a new archive has the mode that the umask leaves", "[core][archive_writer]") {
  const TemporaryDirectory directory;
  const mode_t before = ::umask(027);
  const auto ok = write_whole(directory / "a.safetensors");
  ::umask(before);
  REQUIRE(ok);
  CHECK((status_of(directory / "a.safetensors").st_mode & 07777) == 0640);
}

TEST_CASE("a link is replaced, what it points to is not", "[core][archive_writer]") {
  const TemporaryDirectory directory;
  const std::string target = directory.write("blob", "shared");
  const std::string path = directory / "a.safetensors";
  std::filesystem::create_symlink(target, path);
  REQUIRE(::chmod(target.c_str(), 06755) == 0);
  const mode_t before = ::umask(027);
  REQUIRE(write_whole(path, true));
  ::umask(before);
  CHECK(!std::filesystem::is_symlink(path));
  CHECK(content_of(target) == "shared");
  CHECK((status_of(path).st_mode & 07777) == 0640);
}

TEST_CASE("what can't be written says so with its path and errno", "[core][archive_writer]") {
  const TemporaryDirectory directory;
  const auto nowhere = write_whole(directory / "none/a.safetensors");
  REQUIRE(!nowhere);
  CHECK(nowhere.error().errno_value == ENOENT);
  CHECK(nowhere.error().message.find(directory / "none/a.safetensors") == 0);
  std::filesystem::create_directory(directory / "folder");
  const auto folder = write_whole(directory / "folder", true);
  REQUIRE(!folder);
  CHECK(folder.error().errno_value == EISDIR);
  const auto invalid =
      ArchiveWriter::create(directory / "b", std::vector<TensorSpec>{{"a", Dtype::F4, {1}}}, {}, false);
  REQUIRE(!invalid);
  CHECK(invalid.error().code == ErrorCode::MisalignedSlice);
  CHECK(count_files(directory.path()) == 1);
}

TEST_CASE("a name of the greatest length can be written", "[core][archive_writer]") {
  const TemporaryDirectory directory;
  CHECK(write_whole(directory / (std::string(243, 'n') + ".safetensors")));
}

TEST_CASE("a disk that is full fails at once, with its errno, and is left clean", "[core][archive_writer]") {
  const TemporaryDirectory directory;
  // A limit on the size of files has the effect of a full disk: writes fail at the same places, and no mount
  // is needed.
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit { 100'000, before.rlim_max };
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const std::vector<TensorSpec> tensors = {{"big", Dtype::U8, {1'000'000}}};
  const auto writer = ArchiveWriter::create(directory / "a.safetensors", tensors, {}, false);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  REQUIRE(!writer);
  CHECK(writer.error().errno_value == EFBIG);
  CHECK(writer.error().message.find(directory / "a.safetensors") == 0);
  CHECK(count_files(directory.path()) == 0);
}
