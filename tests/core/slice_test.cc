// core/slice.h. tests/reference/test_slices.py compares with NumPy itself.
#include "core/slice.h"

#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "support/catch.h"

using namespace stfs;

namespace {

using Shape = std::vector<std::uint64_t>;

constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;

Slice parsed(std::string_view text, const Shape& shape, Dtype dtype = Dtype::U8) {
  auto slice = parse_slice(text, dtype, shape);
  INFO("slice: " << text);
  if (!slice) FAIL(slice.error().message);
  return std::move(*slice);
}

std::string failure(std::string_view text, const Shape& shape, Dtype dtype = Dtype::U8) {
  const auto slice = parse_slice(text, dtype, shape);
  INFO("slice: " << text.substr(0, 200));
  if (slice) return "no failure";
  CHECK(slice.error().errno_value == EINVAL);
  CHECK(slice.error().message.size() < 400);
  return slice.error().message;
}

std::vector<ByteRange> pieces_of(const Slice& slice, ByteRange range) {
  std::vector<ByteRange> pieces;
  CHECK(for_each_run(slice, range, [&](ByteRange piece) {
    pieces.push_back(piece);
    return pieces.size() < 1'000'000;
  }));
  return pieces;
}

std::vector<ByteRange> pieces_of(const Slice& slice) {
  return pieces_of(slice, {0, slice.size_bytes});
}

// --- a reference that knows nothing of loops, strides and runs ----------------------------------------

// What a random slice selects of one dimension, and how it is written.
struct Chosen {
  std::string text;
  std::vector<std::uint64_t> positions;
  bool is_dropped = false;
};

using Random = std::mt19937;

std::int64_t number(Random& random, std::int64_t from, std::int64_t to) {
  return std::uniform_int_distribution<std::int64_t>(from, to)(random);
}

// The positions that Python's a[start:stop:step] visits, one by one.
std::vector<std::uint64_t> visit(std::int64_t size, std::optional<std::int64_t> start,
                                 std::optional<std::int64_t> stop, std::int64_t step) {
  const auto from_end = [&](std::int64_t bound) { return bound < 0 ? bound + size : bound; };
  std::int64_t at = start ? from_end(*start) : step > 0 ? 0 : size - 1;
  if (step > 0 && at < 0) at = 0;
  if (step < 0 && at >= size) at = size - 1;
  std::vector<std::uint64_t> positions;
  for (; at >= 0 && at < size; at += step) {
    if (stop && (step > 0 ? at >= from_end(*stop) : at <= from_end(*stop))) break;
    positions.push_back(static_cast<std::uint64_t>(at));
  }
  return positions;
}

Chosen choose(Random& random, std::uint64_t size) {
  const auto n = static_cast<std::int64_t>(size);
  const auto bound = [&]() -> std::optional<std::int64_t> {
    if (number(random, 0, 1) == 0) return std::nullopt;
    return number(random, -n - 2, n + 2);
  };
  const auto text = [](std::optional<std::int64_t> value) { return value ? std::to_string(*value) : ""; };
  if (size > 0 && number(random, 0, 4) == 0) {
    const std::int64_t index = number(random, -n, n - 1);
    return {text(index), {static_cast<std::uint64_t>(index < 0 ? index + n : index)}, true};
  }
  const auto start = bound();
  const auto stop = bound();
  const std::int64_t step = number(random, 1, 3) * (number(random, 0, 1) == 0 ? 1 : -1);
  // Bounds that are met in the wrong order select nothing: seldom enough that the rest is tried.
  if (visit(n, start, stop, step).empty() && number(random, 0, 9) != 0) return choose(random, size);
  if (step == 1) return {text(start) + ":" + text(stop), visit(n, start, stop, 1)};
  return {text(start) + ":" + text(stop) + ":" + text(step), visit(n, start, stop, step)};
}

Chosen all_of(std::uint64_t size) {
  Chosen all{":", std::vector<std::uint64_t>(size)};
  std::iota(all.positions.begin(), all.positions.end(), 0U);
  return all;
}

struct RandomSlice {
  Shape shape;
  std::string text;
  Shape result_shape;
  std::vector<std::uint64_t> elements;  // in order
};

RandomSlice random_slice(Random& random) {
  RandomSlice made;
  const auto rank = static_cast<std::size_t>(number(random, 0, 6));
  for (std::size_t i = 0; i < rank; ++i) {
    made.shape.push_back(static_cast<std::uint64_t>(number(random, 0, 60) == 0 ? 0 : number(random, 1, 6)));
  }
  // Some dimensions are left to an ellipsis or to the end of the text.
  const std::int64_t style = number(random, 0, 2);
  const auto begin = static_cast<std::size_t>(number(random, 0, static_cast<std::int64_t>(rank)));
  const auto end = style == 0   ? begin
                   : style == 1 ? rank
                                : static_cast<std::size_t>(number(random, static_cast<std::int64_t>(begin),
                                                                  static_cast<std::int64_t>(rank)));
  const bool has_ellipsis = style == 2 || begin == 0;
  std::vector<Chosen> axes;
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < rank; ++i) {
    if (i == begin && has_ellipsis) texts.push_back("...");
    if (i >= begin && i < end) {
      axes.push_back(all_of(made.shape[i]));
    } else if (style == 0 && i >= begin && !has_ellipsis) {
      axes.push_back(all_of(made.shape[i]));
    } else {
      axes.push_back(choose(random, made.shape[i]));
      texts.push_back(axes.back().text);
    }
  }
  if (begin == rank && has_ellipsis) texts.push_back("...");
  if (texts.empty()) texts.push_back("...");
  for (const std::string& text : texts) {
    if (!made.text.empty()) made.text += number(random, 0, 3) == 0 ? " , " : ",";
    made.text += text;
  }
  made.elements = {0};
  for (std::size_t i = 0; i < rank; ++i) {
    if (!axes[i].is_dropped) made.result_shape.push_back(axes[i].positions.size());
    std::vector<std::uint64_t> next;
    for (const std::uint64_t element : made.elements) {
      for (const std::uint64_t position : axes[i].positions) {
        next.push_back(element * made.shape[i] + position);
      }
    }
    made.elements = std::move(next);
  }
  return made;
}

std::vector<std::byte> expected_bytes(const RandomSlice& made, std::span<const std::byte> tensor,
                                      std::size_t item_bytes) {
  std::vector<std::byte> bytes;
  for (const std::uint64_t element : made.elements) {
    for (std::size_t i = 0; i < item_bytes; ++i) bytes.push_back(tensor[element * item_bytes + i]);
  }
  return bytes;
}

void check_range(const Slice& slice, ByteRange range, std::span<const std::byte> tensor,
                 std::span<const std::byte> expected) {
  const auto due = expected.subspan(range.offset, range.size_bytes);
  std::vector<std::byte> gathered(range.size_bytes + 1, std::byte{0xEE});
  REQUIRE(gather(slice, range, tensor, std::span(gathered).first(range.size_bytes)) == range.size_bytes);
  REQUIRE(std::equal(due.begin(), due.end(), gathered.begin()));
  REQUIRE(gathered.back() == std::byte{0xEE});

  std::vector<std::byte> walked;
  const auto pieces = pieces_of(slice, range);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    REQUIRE(!pieces[i].empty());
    REQUIRE(slice.extent.contains(pieces[i]));
    if (i > 0) REQUIRE(pieces[i - 1].end() != pieces[i].offset);
    const auto piece = tensor.subspan(pieces[i].offset, pieces[i].size_bytes);
    walked.insert(walked.end(), piece.begin(), piece.end());
  }
  REQUIRE(std::equal(due.begin(), due.end(), walked.begin(), walked.end()));
}

}  // namespace

TEST_CASE("10,000 random slices of all ranks up to 6 hold what a plain enumeration selects",
          "[core][slice]") {
  Random random(20261121);
  const Dtype dtypes[] = {Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::C64};
  int empty = 0;
  int scattered = 0;
  for (int round = 0; round < 10'000; ++round) {
    const RandomSlice made = random_slice(random);
    const Dtype dtype = dtypes[round % 4];
    const std::size_t item_bytes = bits_of(dtype) / 8;
    CAPTURE(made.text, made.shape, item_bytes);
    const std::uint64_t count =
        std::accumulate(made.shape.begin(), made.shape.end(), std::uint64_t{1}, std::multiplies<>());
    std::vector<std::byte> tensor(count * item_bytes);
    for (std::byte& byte : tensor) byte = static_cast<std::byte>(random());

    const auto slice = parse_slice(made.text, dtype, made.shape);
    REQUIRE(slice);
    const auto expected = expected_bytes(made, tensor, item_bytes);
    REQUIRE(slice->shape == made.result_shape);
    REQUIRE(slice->element_count == made.elements.size());
    REQUIRE(slice->size_bytes == expected.size());
    check_range(*slice, {0, expected.size()}, tensor, expected);
    for (int i = 0; i < 3; ++i) {
      const auto from =
          static_cast<std::uint64_t>(number(random, 0, static_cast<std::int64_t>(expected.size())));
      const auto size =
          static_cast<std::uint64_t>(number(random, 0, static_cast<std::int64_t>(expected.size() - from)));
      check_range(*slice, {from, size}, tensor, expected);
    }
    if (expected.empty()) {
      ++empty;
    } else {
      const auto [low, high] = std::minmax_element(made.elements.begin(), made.elements.end());
      REQUIRE(slice->extent == ByteRange{*low * item_bytes, (*high - *low + 1) * item_bytes});
      // One range, in order and without a gap: that is what contiguous means, and nothing else.
      const bool is_one_range = pieces_of(*slice).size() == 1;
      REQUIRE(slice->is_contiguous() == is_one_range);
      scattered += is_one_range ? 0 : 1;
    }
  }
  CHECK(empty > 500);
  CHECK(scattered > 3000);
}

TEST_CASE("a slice along the leading dimension is one range", "[core][slice]") {
  const Slice rows = parsed("2:5", {10, 4, 3}, Dtype::F32);
  CHECK(rows.shape == Shape{3, 4, 3});
  CHECK(rows.element_count == 36);
  CHECK(rows.is_contiguous());
  CHECK(rows.extent == ByteRange{96, 144});
  CHECK(pieces_of(rows) == std::vector<ByteRange>{{96, 144}});
  CHECK(pieces_of(rows, {7, 50}) == std::vector<ByteRange>{{103, 50}});

  CHECK(parsed("3,1:3", {10, 4, 3}).is_contiguous());
  CHECK(parsed("3,1,::2", {10, 4, 3}).is_contiguous() == false);
  CHECK(parsed("...", {10, 4, 3}).extent == ByteRange{0, 120});
  CHECK(parsed("-1", {10, 4, 3}).extent == ByteRange{108, 12});
  // Of one row, no step can be seen.
  CHECK(parsed("4:5:-1", {10, 4}).is_contiguous());
  CHECK(parsed("4:3:-1", {10, 4}).extent == ByteRange{16, 4});
}

TEST_CASE("other slices come as the longest runs that they have", "[core][slice]") {
  CHECK(pieces_of(parsed(":,1:3", {3, 4})) == std::vector<ByteRange>{{1, 2}, {5, 2}, {9, 2}});
  CHECK(pieces_of(parsed("::2,1:,:", {4, 3, 5})) == std::vector<ByteRange>{{5, 10}, {35, 10}});
  CHECK(pieces_of(parsed("::-1", {3}, Dtype::F32)) == std::vector<ByteRange>{{8, 4}, {4, 4}, {0, 4}});
  // What ends one row and what begins the next lie together.
  CHECK(pieces_of(parsed(":,::2", {3, 3})) == std::vector<ByteRange>{{0, 1}, {2, 2}, {5, 2}, {8, 1}});
  CHECK(parsed("::-1,::-1,::-1", {4, 5, 6}).loops.size() == 1);
  CHECK(parsed(":,:,3", {4, 5, 6}).loops.size() == 1);
}

TEST_CASE("a walk ends where its callback wants it to", "[core][slice]") {
  const Slice slice = parsed(":,0", {100, 2});
  int calls = 0;
  CHECK_FALSE(for_each_run(slice, {0, 100}, [&](ByteRange) { return ++calls < 3; }));
  CHECK(calls == 3);
}

TEST_CASE("ranges of a slice are clipped to it", "[core][slice]") {
  const Slice slice = parsed(":,0", {4, 2});
  std::vector<std::byte> tensor(8);
  std::iota(reinterpret_cast<char*>(tensor.data()), reinterpret_cast<char*>(tensor.data()) + 8, '\0');
  std::vector<std::byte> to(100);
  CHECK(gather(slice, {2, 98}, tensor, to) == 2);
  CHECK(to[0] == std::byte{4});
  CHECK(to[1] == std::byte{6});
  CHECK(gather(slice, {4, 1}, tensor, to) == 0);
  CHECK(gather(slice, {~0ULL, 0}, tensor, to) == 0);
  CHECK(pieces_of(slice, {3, 50}) == std::vector<ByteRange>{{6, 1}});
  CHECK(pieces_of(slice, {50, 50}).empty());
}

TEST_CASE("runs of every length are gathered", "[core][slice]") {
  Random random(7);
  std::vector<std::byte> tensor(40 * 41);
  for (std::byte& byte : tensor) byte = static_cast<std::byte>(random());
  for (std::uint64_t width = 1; width <= 40; ++width) {
    for (const char* step : {"", "-1"}) {
      CAPTURE(width, step);
      const Slice slice = parsed("::" + std::string(step) + ",:" + std::to_string(width), {40, 41});
      std::vector<std::byte> expected;
      for (std::size_t i = 0; i < 40; ++i) {
        const std::size_t row = *step == '\0' ? i : 39 - i;
        for (std::size_t at = 0; at < width; ++at) expected.push_back(tensor[row * 41 + at]);
      }
      check_range(slice, {0, expected.size()}, tensor, expected);
      if (expected.size() > 10) check_range(slice, {3, expected.size() - 7}, tensor, expected);
    }
  }
}

TEST_CASE("a slice of nothing is legal", "[core][slice]") {
  for (const char* text : {"5:5", "5:2", "2:5:-1", "100:", ":-100", "0:0,1", "..., 7:"}) {
    CAPTURE(text);
    const Slice slice = parsed(text, {10, 4});
    CHECK(slice.element_count == 0);
    CHECK(slice.size_bytes == 0);
    CHECK(slice.is_contiguous());
    CHECK(slice.extent.empty());
    CHECK(pieces_of(slice, {0, 10}).empty());
    CHECK(gather(slice, {0, 10}, {}, {}) == 0);
  }
  CHECK(parsed("5:5", {10, 4}).shape == Shape{0, 4});
  CHECK(parsed("3:3", {4}, Dtype::F4).size_bytes == 0);
  CHECK(parsed("...,3", {0, 4}).shape == Shape{0});
}

TEST_CASE("a scalar has the slice of itself", "[core][slice]") {
  const Slice slice = parsed("...", {}, Dtype::F64);
  CHECK(slice.shape.empty());
  CHECK(slice.element_count == 1);
  CHECK(slice.extent == ByteRange{0, 8});
  CHECK(failure("0", {}) == "byte 0: more indices than the 0 dimensions of []");
  CHECK(parsed("1,2", {3, 4}).shape.empty());
  CHECK(parsed("1,2", {3, 4}).extent == ByteRange{6, 1});
}

TEST_CASE("spaces and a comma at the end mean nothing", "[core][slice]") {
  CHECK(parsed(" 1 : 3 : 1 , ... , -1 ", {4, 5}).shape == Shape{2});
  CHECK(parsed(" 1 : 3 ,", {4, 5}).extent == ByteRange{5, 10});
  CHECK(parsed("0,", {4, 5}).shape == Shape{5});
}

TEST_CASE("a text that is no slice is refused with its place", "[core][slice]") {
  const Shape shape = {4, 5};
  CHECK(failure("", shape) == "byte 0: it ends where an integer, a range or ... is due");
  CHECK(failure("1,,2", shape) == "byte 2: \",\" where an integer, a range or ... is due");
  CHECK(failure(",", shape) == "byte 0: \",\" where an integer, a range or ... is due");
  CHECK(failure("None", shape) == "byte 0: \"None\" where an integer, a range or ... is due");
  CHECK(failure("1, newaxis", shape) == "byte 3: \"newaxis\" where an integer, a range or ... is due");
  CHECK(failure("True", shape) == "byte 0: \"True\" where an integer, a range or ... is due");
  CHECK(failure("1.5", shape) == "byte 1: \".\" where a comma or the end is due");
  CHECK(failure("1 2", shape) == "byte 2: \"2\" where a comma or the end is due");
  CHECK(failure("0x10", shape) == "byte 1: \"x\" where a comma or the end is due");
  CHECK(failure("1:2:3:4", shape) == "byte 5: \":\" where a comma or the end is due");
  CHECK(failure("0:--1", shape) == "byte 2: \"-\" where a comma or the end is due");
  CHECK(failure("0:1,(2)", shape) == "byte 4: \"(\" where an integer, a range or ... is due");
  CHECK(failure("...,1,...", shape) == "byte 6: a second ...");
  CHECK(failure("....", shape) == "byte 3: \".\" where a comma or the end is due");
  CHECK(failure("0,::0", shape) == "byte 2: a step of 0");
  CHECK(failure("\x1b[31m", shape) == "byte 0: \"\\u001b\" where an integer, a range or ... is due");
  CHECK(failure(std::string("1\0002", 3), shape) == "byte 1: \"\\u0000\" where a comma or the end is due");
}

TEST_CASE("indices beyond a dimension, or more of them than dimensions, are refused", "[core][slice]") {
  const Shape shape = {4, 5};
  CHECK(failure("4", shape) == "byte 0: index 4 is out of range for dimension 0, which has 4 elements");
  CHECK(failure("0:1, -6", shape) ==
        "byte 5: index -6 is out of range for dimension 1, which has 5 elements");
  CHECK(failure("5:5,5", shape) == "byte 4: index 5 is out of range for dimension 1, which has 5 elements");
  CHECK(failure("0", {0}) == "byte 0: index 0 is out of range for dimension 0, which has 0 elements");
  CHECK(failure("...,:,9", shape) == "byte 6: index 9 is out of range for dimension 1, which has 5 elements");
  CHECK(failure("0,0,0", shape) == "byte 4: more indices than the 2 dimensions of [4,5]");
  CHECK(failure(":,:,...,:", shape) == "byte 8: more indices than the 2 dimensions of [4,5]");
}

TEST_CASE("numbers of any length are clipped in ranges and out of range as integers", "[core][slice]") {
  const std::string many(1'000'000, '9');
  CHECK(parsed("0:" + many, {4, 5}).shape == Shape{4, 5});
  CHECK(parsed("-" + many + ":" + many + ":" + many, {4, 5}).shape == Shape{1, 5});
  CHECK(parsed(many + ":-" + many + ":-" + many, {4, 5}).extent == ByteRange{15, 5});
  CHECK(parsed(many + "::-1", {4, 5}).shape == Shape{4, 5});
  CHECK(parsed("-9223372036854775808::-1", {4, 5}).shape == Shape{0, 5});
  CHECK(parsed("::-9223372036854775808", {4, 5}).extent == ByteRange{15, 5});
  CHECK(failure(many, {4, 5}) != "no failure");
  CHECK(failure("-" + many, {4, 5}) != "no failure");
  CHECK(failure("9223372036854775808", {4, 5}) != "no failure");
}

TEST_CASE("a text of a million indices is refused at the first that is too many", "[core][slice]") {
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += "0,";
  CHECK(failure(text, {4, 5}) == "byte 4: more indices than the 2 dimensions of [4,5]");
  CHECK(failure(std::string(1'000'000, ':'), {4, 5}) == "byte 2: \":\" where a comma or the end is due");
  CHECK(failure(std::string(1'000'000, ' '), {4, 5}) ==
        "byte 1000000: it ends where an integer, a range or ... is due");
}

TEST_CASE("a slice of a tensor of 2^60 bytes is planned and entered anywhere at once", "[core][slice]") {
  const Slice all = parsed("...", {kHuge});
  CHECK(all.extent == ByteRange{0, kHuge});
  const Slice backwards = parsed("::-1", {1 << 30, 1 << 30});
  CHECK(backwards.size_bytes == kHuge);
  const Slice odd = parsed("1::2,::-2", {1 << 30, 1 << 30});
  CHECK(odd.element_count == std::uint64_t{1} << 58);
  const std::uint64_t last = odd.size_bytes - 1;
  CHECK(pieces_of(odd, {last, 1}) == std::vector<ByteRange>{{(kHuge - (1 << 30)) + 1, 1}});
  CHECK(pieces_of(odd, {last - 1, 100}).size() == 2);
  CHECK(odd.extent.end() == kHuge);
  // The largest that the format can hold: 2^61 - 1 bytes.
  const std::uint64_t most = (std::uint64_t{1} << 61) - 1;
  CHECK(parsed("::-1", {most}).size_bytes == most);
  CHECK(pieces_of(parsed("::-1", {most}), {most - 1, 1}) == std::vector<ByteRange>{{0, 1}});
  CHECK(parsed("::2", {(most + 1) / 8 - 1}, Dtype::F64).extent.end() == most + 1 - 8);
  const Slice ends = parsed("::144115188075855872", {(kHuge >> 2) - 1}, Dtype::F64);
  CHECK(pieces_of(ends) == std::vector<ByteRange>{{0, 8}, {kHuge, 8}});
  CHECK(parsed("::-1,:", {1 << 30, std::uint64_t{1} << 31}, Dtype::F4).extent == ByteRange{0, kHuge});
}

TEST_CASE("shapes that no tensor or no NumPy array has are refused", "[core][slice]") {
  CHECK(failure("0", {1ULL << 40, 1ULL << 40}) != "no failure");
  CHECK(failure("0", {1ULL << 63}) != "no failure");
  CHECK(failure("0:0", {3}, Dtype::F4) != "no failure");
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  CHECK(failure(":", {0, most}) ==
        "dimension 1 has 18446744073709551615 elements, more than an index can tell");
  CHECK(parsed(":,5:", {0, most / 2}).shape == Shape{0, most / 2 - 5});
  CHECK(parsed(":,-1", {0, most / 2, most / 2}).shape == Shape{0, most / 2});
  CHECK(parsed("...,0", Shape(64, 1)).shape == Shape(63, 1));
  CHECK(failure("...,0", Shape(65, 1)) == "the tensor has 65 dimensions, and slices are of 64 at most");
}

TEST_CASE("elements of less than a byte are selected in runs of whole bytes", "[core][slice]") {
  CHECK(pieces_of(parsed("1", {3, 4}, Dtype::F4)) == std::vector<ByteRange>{{2, 2}});
  CHECK(pieces_of(parsed(":,2:4", {3, 4}, Dtype::F4)) == std::vector<ByteRange>{{1, 1}, {3, 1}, {5, 1}});
  CHECK(pieces_of(parsed("::-1,:2", {3, 4}, Dtype::F4)) == std::vector<ByteRange>{{4, 1}, {2, 1}, {0, 1}});
  CHECK(parsed("...", {2, 2}, Dtype::F6_E2M3).size_bytes == 3);
  CHECK(pieces_of(parsed(":,4:8", {2, 8}, Dtype::F6_E3M2)) == std::vector<ByteRange>{{3, 3}, {9, 3}});
  const std::string reason = "an element of F4 has 4 bits, and the slice's runs of ";
  CHECK(failure(":,1:3", {3, 4}, Dtype::F4).starts_with(reason + "2"));
  CHECK(failure(":,0", {3, 4}, Dtype::F4).starts_with(reason + "1"));
  CHECK(failure("0:1", {4}, Dtype::F4).starts_with(reason + "1"));
  CHECK(failure("::2", {4, 3}, Dtype::F4).starts_with(reason + "3"));
  CHECK(failure("::-1", {4}, Dtype::F4).starts_with(reason + "1"));
  CHECK(failure("0:2", {4}, Dtype::F6_E2M3).find("6 bits") != std::string::npos);
}
