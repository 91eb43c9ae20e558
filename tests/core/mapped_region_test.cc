// A mapping, and proof before each touch that it will not be a SIGBUS.
#include "core/mapped_region.h"

#include <sys/mman.h>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using stfs::test::TemporaryDirectory;

namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};  // NOLINT: bytes as characters
}

}  // namespace

TEST_CASE("a region shows the file's bytes, and what is written later", "[core][mapped_region]") {
  const TemporaryDirectory directory;
  const auto file = system_storage().open(directory.write("f", "0123456789"), Access::ReadWrite);
  const auto region = MappedRegion::map(**file, 10);
  REQUIRE(region);
  CHECK(region->size_bytes() == 10);
  REQUIRE(region->populate({2, 5}, **file));
  CHECK(text_of(region->bytes({2, 5})) == "23456");
  REQUIRE((*file)->write(std::as_bytes(std::span("xy", 2)), 3));
  CHECK(text_of(region->bytes({0, 10})) == "012xy56789");
}

TEST_CASE("a region may be written by nobody", "[core][mapped_region]") {
  const TemporaryDirectory directory;
  const auto file = system_storage().open(directory.write("f", "0123456789"), Access::ReadWrite);
  const auto region = MappedRegion::map(**file, 10);
  REQUIRE(region);
  std::byte* data = const_cast<std::byte*>(region->bytes({0, 1}).data());  // NOLINT: to ask the kernel
  // MADV_POPULATE_WRITE, linux/mman.h, fails where a store would.
  constexpr int kPopulateWrite = 23;
  CHECK(::madvise(data, 4096, kPopulateWrite) != 0);
}

TEST_CASE("an empty file gives an empty region", "[core][mapped_region]") {
  const TemporaryDirectory directory;
  const auto file = system_storage().open(directory.write("f", ""), Access::ReadOnly);
  const auto region = MappedRegion::map(**file, 0);
  REQUIRE(region);
  CHECK(region->size_bytes() == 0);
  CHECK(region->bytes({0, 0}).empty());
  CHECK(region->populate({0, 0}, **file));
}

TEST_CASE("pages that a cut has taken fail to populate; those before it do not", "[core][mapped_region]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", std::string(100'000, 'x'));
  const auto file = system_storage().open(path, Access::ReadOnly);
  const auto region = MappedRegion::map(**file, 100'000);
  REQUIRE(region);
  std::filesystem::resize_file(path, 8192);
  CHECK(region->populate({0, 8192}, **file));
  CHECK_FALSE(region->populate({8192, 1}, **file));
  CHECK_FALSE(region->populate({8191, 2}, **file));
  CHECK_FALSE(region->populate({99'999, 1}, **file));
  CHECK(region->populate({50'000, 0}, **file));
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
  CHECK(text_of(moved.bytes({8, 2})) == "89");
  CHECK(region->size_bytes() == 0);  // NOLINT: what is left is empty
  MappedRegion assigned;
  assigned = std::move(moved);
  CHECK(text_of(assigned.bytes({0, 2})) == "01");
}
