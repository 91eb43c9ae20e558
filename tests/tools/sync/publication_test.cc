// The order of published versions.
#include "tools/sync/publication.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tests/support/watched_storage.h"

namespace stfs::sync {
namespace {

/// A version of one tensor, which changes the version before it.
void write_version(const test::TemporaryDirectory& directory, std::uint64_t version) {
  const std::string name = version_directory_name(version);
  std::filesystem::create_directory(directory.path() / name);
  directory.write(name + "/model.safetensors", test::archive_of({{"a", "ay"}}, R"({"a":"0000000a"})"));
  directory.write(name + "/" + std::string(kVersionIndex),
                  R"({"metadata":{"version":")" + version_text(version) + R"(","base_version":")" +
                      version_text(version - 1) +
                      R"(","delta_encoding":"xor","compression_format":"zstd","checksum_format":"adler32"},)"
                      R"("weight_map":{"a":"model.safetensors"}})");
}

/// Counts the opened files of a look at `count` versions. Versions from 2 on are diffs. Version 1, their
/// base, has no file yet.
std::ptrdiff_t looks_at(std::uint64_t count) {
  const test::TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path() / version_directory_name(1));
  for (std::uint64_t version = 2; version <= count; ++version) write_version(directory, version);
  test::WatchedStorage storage;
  const auto publication = Publication::look(directory.path(), storage);
  REQUIRE(publication);
  const auto way = publication->way({}, {});
  REQUIRE(way);
  CHECK(way->steps.empty());
  REQUIRE(way->unfinished);
  CHECK(way->unfinished->errno_value == EAGAIN);
  CHECK(way->unfinished->message.find("weight_v000001: unfinished: ") != std::string::npos);
  return storage.count(test::FileCall::Open);
}

}  // namespace

TEST_CASE("each version before one that is not whole is looked at once", "[tools][sync]") {
  CHECK(looks_at(24) - looks_at(16) == looks_at(16) - looks_at(8));
}

TEST_CASE("a way keeps none of its versions open", "[tools][sync]") {
  const test::TemporaryDirectory directory;
  for (std::uint64_t version = 2; version <= 9; ++version) write_version(directory, version);
  const auto publication = Publication::look(directory.path());
  REQUIRE(publication);
  const std::size_t before = test::open_descriptors();
  const auto way = publication->way(1, {});
  REQUIRE(way);
  CHECK(test::open_descriptors() == before);
  REQUIRE(way->steps.size() == 8);
  CHECK(way->steps.front().version.number == 2);
  CHECK(way->steps.front().base->number == 1);
  const auto last = publication->open(way->steps.back());
  REQUIRE(last);
  CHECK(last->version().text == "000009");
}

TEST_CASE("a version that was published again after its way was found is looked at again", "[tools][sync]") {
  const test::TemporaryDirectory directory;
  for (const std::uint64_t version : {2U, 3U}) write_version(directory, version);
  const auto publication = Publication::look(directory.path());
  REQUIRE(publication);
  const auto way = publication->way(1, {});
  REQUIRE(way);
  const std::string name = version_directory_name(3);
  const std::string index = name + "/" + std::string(kVersionIndex);
  const std::string is_whole = test::content_of(directory / index);
  for (const std::string& text : {is_whole + " ", std::string()}) {
    directory.write(index, text);
    const auto opened = publication->open(way->steps.back());
    REQUIRE_FALSE(opened);
    CHECK(opened.error().errno_value == ESTALE);
    CHECK(opened.error().message == directory / name + ": published again while it was read");
  }
  std::filesystem::remove_all(directory / name);
  CHECK(publication->open(way->steps.back()).error().errno_value == ESTALE);
}

TEST_CASE("a way has a greatest length", "[tools][sync]") {
  const test::TemporaryDirectory directory;
  for (std::uint64_t version = 2; version <= 7; ++version) write_version(directory, version);
  const auto publication = Publication::look(directory.path(), system_storage(), 5);
  REQUIRE(publication);
  const auto way = publication->way(2, {});
  REQUIRE(way);
  CHECK(way->steps.size() == 5);
  const auto longer = publication->way(1, {});
  REQUIRE_FALSE(longer);
  CHECK(longer.error().errno_value == EINVAL);
  CHECK(longer.error().message.find("has more than 5 versions") != std::string::npos);
  CHECK(publication->way(1, 6));
}

TEST_CASE("who names no directory is told what to name", "[tools][sync]") {
  const auto publication = Publication::look("/nowhere/published");
  REQUIRE_FALSE(publication);
  CHECK(publication.error().errno_value == ENOENT);
  CHECK(publication.error().message ==
        "/nowhere/published: there is no such directory: name the one that holds the published versions, "
        "weight_v000000 and so on");
}

TEST_CASE("a stranger's version in a directory with the sticky bit does not count", "[tools][sync]") {
  if (::geteuid() != 0) return;  // only root may give directories away
  constexpr uid_t kTrainer = 12345;
  constexpr uid_t kStranger = 23456;
  const test::TemporaryDirectory directory;
  for (const std::uint64_t version : {2U, 3U, 4U, 999U}) write_version(directory, version);
  REQUIRE(::chown(directory.path().c_str(), kTrainer, kTrainer) == 0);
  const auto give = [&](std::uint64_t version, uid_t owner) {
    const std::string path = directory / version_directory_name(version);
    REQUIRE(::chown(path.c_str(), owner, owner) == 0);
  };
  give(2, kTrainer);
  give(4, kStranger);
  give(999, kStranger);
  // Whatever a link leads to, its own owner counts.
  const std::string link = directory / version_directory_name(5);
  REQUIRE(::symlink(version_directory_name(3).c_str(), link.c_str()) == 0);
  REQUIRE(::lchown(link.c_str(), kStranger, kStranger) == 0);
  using Versions = std::vector<std::uint64_t>;
  for (const mode_t mode : {01777U, 01775U}) {
    REQUIRE(::chmod(directory.path().c_str(), mode) == 0);
    const auto publication = Publication::look(directory.path());
    REQUIRE(publication);
    CHECK(publication->versions() == Versions{2, 3});
    const auto way = publication->way(1, {});
    REQUIRE(way);
    CHECK(way->steps.size() == 2);
    REQUIRE(way->unfinished);
    CHECK(way->unfinished->message.find("weight_v000999: belongs to user 23456") != std::string::npos);
    CHECK_FALSE(publication->way(999, {})->unfinished);
    const auto named = publication->way(3, 4);
    REQUIRE_FALSE(named);
    CHECK(is_unfinished(named.error()));
    CHECK(named.error().message.find("weight_v000004: belongs to user 23456") != std::string::npos);
  }
  for (const mode_t mode : {0777U, 01755U}) {
    REQUIRE(::chmod(directory.path().c_str(), mode) == 0);
    CHECK(Publication::look(directory.path())->versions() == Versions{2, 3, 4, 5, 999});
  }
}

}  // namespace stfs::sync
