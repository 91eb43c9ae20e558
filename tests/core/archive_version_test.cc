// Tests which tensor bytes of an earlier header are still in their place in a later header.
#include "core/archive/archive_version.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// The header of an archive with these tensors.
ArchiveHeader header_of(const Tensors& tensors) {
  const std::string bytes = archive_of(tensors);
  std::uint64_t data_bytes = 0;
  for (const auto& [name, content] : tensors) data_bytes += content.size();
  ArchiveHeader header;
  header.size_bytes = bytes.size() - data_bytes - kHeaderLengthBytes;
  header.content =
      parse_header(std::string_view(bytes).substr(kHeaderLengthBytes, header.size_bytes), data_bytes).value();
  return header;
}

const std::string kFiller = std::string(kFillerPrefix) + "0";

}  // namespace

TEST_CASE("a later header keeps what it leaves in its place", "[core][archive]") {
  const ArchiveHeader later =
      header_of({{"empty", ""}, {"first", "1111"}, {"none", ""}, {"second", "22222222"}});
  const std::uint64_t begin = later.data_offset();
  CHECK(later.keeps("first", {begin, 4}));
  CHECK(later.keeps("second", {begin + 4, 8}));
  // The later header has no "third". Its bytes are in the tensor that has its place now.
  CHECK(later.keeps("third", {begin + 4, 8}));
  CHECK_FALSE(later.keeps("first", {begin + 4, 8}));
  // At another place, or only in part.
  CHECK_FALSE(later.keeps("first", {begin + 1, 4}));
  CHECK_FALSE(later.keeps("first", {begin, 3}));
  CHECK_FALSE(later.keeps("third", {begin, 12}));
  CHECK_FALSE(later.keeps("third", {begin + 12, 1}));
  CHECK_FALSE(later.keeps("third", {begin - 4, 4}));
  CHECK_FALSE(later.keeps("third", {0, 4}));
  // A tensor without bytes can lose none.
  CHECK(later.keeps("empty", {begin + 99, 0}));
  CHECK_FALSE(header_of({}).keeps("first", {begin, 4}));
}

TEST_CASE("a later header keeps what it has deleted", "[core][archive]") {
  const ArchiveHeader later =
      header_of({{"a", "1"}, {kFiller, "22222222"}, {"b", "3"}, {kFiller + "0", "44"}});
  const std::uint64_t begin = later.data_offset();
  CHECK(later.keeps("second", {begin + 1, 8}));
  CHECK(later.keeps("second", {begin + 3, 2}));
  CHECK(later.keeps("a", {begin + 7, 2}));  // a new tensor has its name
  CHECK(later.keeps("last", {begin + 10, 2}));
  CHECK_FALSE(later.keeps("second", {begin + 1, 9}));
  CHECK_FALSE(later.keeps("second", {begin, 2}));
  CHECK_FALSE(later.keeps("last", {begin + 11, 2}));
}
