// A mapping, and copies out of it that cause no SIGBUS.
#include "core/storage/mapped_region.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/storage/bus_guard.h"
#include "tests/support/catch.h"
#include "tests/support/emulated.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using stfs::test::TemporaryDirectory;

namespace {

std::string text_of(const MappedSpan& bytes) {
  std::string text(bytes.size_bytes(), '\0');
  REQUIRE(bytes.copy_to(std::as_writable_bytes(std::span(text))));
  return text;
}

/// Returns the permissions of this file's mapping, for example "r--s".
std::string permissions_of_map(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(path)) return line.substr(line.find(' ') + 1, 4);
  }
  return "no map";
}

}  // namespace

TEST_CASE("a region shows the file's bytes, and what is written later", "[core][mapped_region]") {
  const TemporaryDirectory directory;
  const auto file = system_storage().open(directory.write("f", "0123456789"), Access::ReadWrite);
  const auto region = MappedRegion::map(**file, 10);
  REQUIRE(region);
  CHECK(region->size_bytes() == 10);
  REQUIRE(region->populate({2, 5}, **file));
  CHECK(text_of(region->span({2, 5})) == "23456");
  REQUIRE((*file)->write(std::as_bytes(std::span("xy", 2)), 3));
  CHECK(text_of(region->span({0, 10})) == "012xy56789");
}

TEST_CASE("a region may be written by nobody", "[core][mapped_region]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", "0123456789");
  const auto file = system_storage().open(path, Access::ReadWrite);
  REQUIRE(MappedRegion::map(**file, 10).value().size_bytes() == 10);
  const auto region = MappedRegion::map(**file, 10);
  REQUIRE(region);
  CHECK(permissions_of_map(path) == "r--s");
}

TEST_CASE("an empty file gives an empty region", "[core][mapped_region]") {
  const TemporaryDirectory directory;
  const auto file = system_storage().open(directory.write("f", ""), Access::ReadOnly);
  const auto region = MappedRegion::map(**file, 0);
  REQUIRE(region);
  CHECK(region->size_bytes() == 0);
  CHECK(region->span({0, 0}).empty());
  CHECK(region->populate({0, 0}, **file));
}

TEST_CASE("pages that a cut has taken fail to populate; those before it do not", "[core][mapped_region]") {
  if (test::takes_any_advice_for_a_hint()) {
    test::note_skip("an emulator takes MADV_POPULATE_READ for a hint");
    return;
  }
  const TemporaryDirectory directory;
  const auto two_pages = static_cast<std::uint64_t>(2 * ::sysconf(_SC_PAGESIZE));
  const std::uint64_t size_bytes = 10 * two_pages + 77;
  const std::string path = directory.write("f", std::string(size_bytes, 'x'));
  const auto file = system_storage().open(path, Access::ReadOnly);
  const auto region = MappedRegion::map(**file, size_bytes);
  REQUIRE(region);
  std::filesystem::resize_file(path, two_pages);
  CHECK(region->populate({0, two_pages}, **file));
  CHECK_FALSE(region->populate({two_pages, 1}, **file));
  CHECK_FALSE(region->populate({two_pages - 1, 2}, **file));
  CHECK_FALSE(region->populate({size_bytes - 1, 1}, **file));
  CHECK(region->populate({size_bytes / 2, 0}, **file));
}

TEST_CASE("what a cut has taken is an error of the copy, and no signal", "[core][mapped_region]") {
  install_bus_guard();
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", std::string(300'000, 'x'));
  const auto file = system_storage().open(path, Access::ReadOnly);
  const auto region = MappedRegion::map(**file, 300'000);
  REQUIRE(region);
  CHECK(text_of(region->span({0, 300'000})) == std::string(300'000, 'x'));
  std::filesystem::resize_file(path, 81'920);
  std::vector<std::byte> to(300'000);
  const auto copied = region->span({0, 300'000}).copy_to(to);
  REQUIRE_FALSE(copied);
  CHECK(copied.error().code == ErrorCode::ArchiveCut);
  CHECK(copied.error().errno_value == EIO);
  CHECK(text_of(region->span({100, 81'820})) == std::string(81'820, 'x'));
  const auto copy = [&](std::span<const std::byte> bytes) {
    std::memcpy(to.data(), bytes.data(), bytes.size());
  };
  CHECK_FALSE(region->copy_from({0, 300'000}, copy));
  CHECK(region->copy_from({100, 81'820}, copy));
}

TEST_CASE("a region outlives its file's name and moves with its owner", "[core][mapped_region]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", "0123456789");
  auto file = system_storage().open(path, Access::ReadOnly);
  auto region = MappedRegion::map(**file, 10);
  REQUIRE(region);
  std::filesystem::remove(path);
  file->reset();
  MappedRegion moved = std::move(*region);
  CHECK(text_of(moved.span({8, 2})) == "89");
  CHECK(region->size_bytes() == 0);
  MappedRegion assigned;
  assigned = std::move(moved);
  CHECK(text_of(assigned.span({0, 2})) == "01");
}
