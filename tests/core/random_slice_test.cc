// Random slices against a plain enumeration of what they select.
#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/slice.h"
#include "tests/core/sliced.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

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
