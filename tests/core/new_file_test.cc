// core/storage/new_file.h. What an archive needs of it is in archive_writer_test.cc.
#include "core/storage/new_file.h"

#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {}  // namespace

TEST_CASE("a new file has its name when it is finished, and all its bytes", "[core][new_file]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("file", "old");
  const std::string small = "small";
  const std::string large(1'000'000, 'x');
  {
    auto file = NewFile::create(path, true);
    REQUIRE(file);
    REQUIRE(file->reserve(3'000'000));
    for (const std::string& piece : {small, large, small, small, large})
      REQUIRE(file->append(bytes_of(piece)));
    CHECK(test::content_of(path) == "old");
    REQUIRE(file->finish());
    CHECK_FALSE(file->is_open());
    CHECK_FALSE(file->append(bytes_of(small)));
  }
  CHECK((test::content_of(path) == small + large + small + small + large));
  CHECK(count_files(directory.path()) == 1);
}

TEST_CASE("space that was reserved and not needed is no part of the file", "[core][new_file]") {
  const test::TemporaryDirectory directory;
  auto file = NewFile::create(directory / "file", false);
  REQUIRE(file);
  REQUIRE(file->reserve(1 << 20));
  REQUIRE(file->append(bytes_of("abc")));
  REQUIRE(file->finish());
  CHECK(test::content_of(directory / "file") == "abc");
}

TEST_CASE("what was appended to a new file can be taken back", "[core][new_file]") {
  const test::TemporaryDirectory directory;
  auto file = NewFile::create(directory / "file", false);
  REQUIRE(file);
  const std::string large(600'000, 'x');  // more than is gathered
  REQUIRE(file->append(bytes_of("abc")));
  REQUIRE(file->append(bytes_of(large)));
  REQUIRE(file->cut(2));
  REQUIRE(file->append(bytes_of(large)));
  REQUIRE(file->cut(2 + 5));
  REQUIRE(file->append(bytes_of("end")));
  REQUIRE(file->cut(2 + 5 + 3));
  REQUIRE(file->finish());
  CHECK(test::content_of(directory / "file") == "abxxxxxend");
}

TEST_CASE("a new file that is given up leaves nothing", "[core][new_file]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("file", "old");
  {
    auto file = NewFile::create(path, true);
    REQUIRE(file);
    REQUIRE(file->append(bytes_of("new")));
    CHECK(count_files(directory.path()) == 2);
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      CHECK(is_temporary_file_name(entry.path().filename().string()) == (entry.path() != path));
    NewFile moved = std::move(*file);
  }
  CHECK(count_files(directory.path()) == 1);
  CHECK(test::content_of(path) == "old");
  CHECK_FALSE(NewFile::create(path, false));
  CHECK_FALSE(NewFile::create(directory / "none/file", true));
}

TEST_CASE("a new file that is settled takes no descriptor, and has its name when it is finished",
          "[core][new_file]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("file", "old");
  {
    auto given_up = NewFile::create(path, true);
    REQUIRE(given_up);
    REQUIRE(given_up->append(bytes_of("given up")));
    REQUIRE(given_up->settle());
    CHECK_FALSE(given_up->is_open());
    CHECK_FALSE(given_up->append(bytes_of("more")));
    CHECK(count_files(directory.path()) == 2);
  }
  CHECK(count_files(directory.path()) == 1);
  auto file = NewFile::create(path, true);
  REQUIRE(file);
  REQUIRE(file->append(bytes_of("new")));
  REQUIRE(file->settle());
  CHECK(test::content_of(path) == "old");
  REQUIRE(file->finish());
  CHECK_FALSE(file->finish());
  CHECK(test::content_of(path) == "new");
  CHECK(count_files(directory.path()) == 1);
}
