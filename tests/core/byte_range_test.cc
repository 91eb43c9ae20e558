// core/base/byte_range.h
#include "core/base/byte_range.h"

#include <limits>

#include "support/catch.h"

using stfs::ByteRange;

namespace {
constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::uint64_t>::max();
}

TEST_CASE("a range whose end passes 64 bits is none", "[core][byte_range]") {
  CHECK(ByteRange::checked(kMaxOffset, 0)->end() == kMaxOffset);
  CHECK(ByteRange::checked(0, kMaxOffset)->end() == kMaxOffset);
  CHECK(!ByteRange::checked(kMaxOffset, 1));
  CHECK(!ByteRange::checked(1, kMaxOffset));
  CHECK(!ByteRange::checked(kMaxOffset, kMaxOffset));
}

TEST_CASE("ranges contain and overlap by their bytes", "[core][byte_range]") {
  const ByteRange range{10, 10};
  CHECK(range.contains({10, 10}));
  CHECK(range.contains({19, 1}));
  CHECK(range.contains({20, 0}));
  CHECK(!range.contains({9, 2}));
  CHECK(!range.contains({19, 2}));
  CHECK(range.overlaps({19, 5}));
  CHECK(range.overlaps({5, 6}));
  CHECK(!range.overlaps({20, 5}));
  CHECK(!range.overlaps({5, 5}));
  CHECK(!ByteRange{3, 1}.empty());
  CHECK(ByteRange{3, 0}.empty());
}

TEST_CASE("an intersection is what both have", "[core][byte_range]") {
  const ByteRange range{10, 10};
  CHECK(range.intersection({15, 10}) == ByteRange{15, 5});
  CHECK(range.intersection({0, 100}) == range);
  CHECK(range.intersection({12, 3}) == ByteRange{12, 3});
  CHECK(range.intersection({30, 5}) == ByteRange{30, 0});
  CHECK(range.intersection({0, 5}) == ByteRange{10, 0});
}
