// The way from version to version.
#include "tools/sync/publication.h"

#include <cerrno>
#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tests/support/watched_storage.h"

namespace stfs::sync {
namespace {

/// Versions of diffs from 2 on. Version 1, their base, has no file yet.
std::ptrdiff_t looks_at(std::uint64_t count) {
  const test::TemporaryDirectory directory;
  for (std::uint64_t version = 1; version <= count; ++version) {
    const std::string name = version_directory_name(version);
    std::filesystem::create_directory(directory.path() / name);
    if (version == 1) continue;
    directory.write(name + "/model.safetensors", test::archive_of({{"a", "ay"}}, R"({"a":"0000000a"})"));
    directory.write(
        name + "/" + std::string(kVersionIndex),
        R"({"metadata":{"version":")" + version_text(version) + R"(","base_version":")" +
            version_text(version - 1) +
            R"(","delta_encoding":"xor","compression_format":"zstd","checksum_format":"adler32"},)"
            R"("weight_map":{"a":"model.safetensors"}})");
  }
  test::WatchedStorage storage;
  const auto publication = Publication::look(directory.path(), storage);
  REQUIRE(publication);
  const auto way = publication->way({}, {});
  REQUIRE(way);
  CHECK(way->versions.empty());
  REQUIRE(way->unfinished);
  CHECK(way->unfinished->errno_value == EAGAIN);
  CHECK(way->unfinished->message.find("weight_v000001: unfinished: ") != std::string::npos);
  return storage.count(test::FileCall::Open);
}

}  // namespace

TEST_CASE("each version before one that is not whole is looked at once", "[tools][sync]") {
  CHECK(looks_at(24) - looks_at(16) == looks_at(16) - looks_at(8));
}

TEST_CASE("who names no directory is told what to name", "[tools][sync]") {
  const auto publication = Publication::look("/nowhere/published");
  REQUIRE_FALSE(publication);
  CHECK(publication.error().errno_value == ENOENT);
  CHECK(publication.error().message ==
        "/nowhere/published: there is no such directory: name the one that holds the published versions, "
        "weight_v000000 and so on");
}

}  // namespace stfs::sync
