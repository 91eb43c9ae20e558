// Parses the text into a range of positions per dimension, and turns these into loops over bytes.
#include "core/tensor/slice.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "core/format/header.h"
#include "core/format/json_string.h"
#include "core/format/tensor_index.h"

namespace stfs {
namespace {

constexpr std::int64_t kMaxIndex = std::numeric_limits<std::int64_t>::max();

tl::unexpected<Error> refuse_slice(std::string why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, std::move(why));
}

/// One part of the text between commas.
struct Item {
  enum class Kind : std::uint8_t { Integer, Range, Ellipsis };
  Kind kind = Kind::Range;
  std::optional<std::int64_t> start;  // or the integer
  std::optional<std::int64_t> stop;
  std::optional<std::int64_t> step;
  std::size_t at = 0;  // position in the text
};

/// The selection in one dimension.
struct Axis {
  std::uint64_t first = 0;
  std::int64_t step = 1;
  std::uint64_t count = 0;
  bool is_dropped = false;
};

class ItemParser {
 public:
  ItemParser(std::string_view text, std::span<const std::uint64_t> shape) : text_(text), shape_(shape) {}

  Result<std::vector<Item>> parse() {
    do {
      skip_space();
      if (at_ == text_.size() && !items_.empty()) break;  // a comma at the end
      RETURN_IF_ERROR(parse_item());
      skip_space();
    } while (take(','));
    if (at_ != text_.size()) return unexpected("a comma or the end");
    return std::move(items_);
  }

  [[nodiscard]] bool has_ellipsis() const { return has_ellipsis_; }

 private:
  Result<void> parse_item() {
    Item item;
    item.at = at_;
    if (text_.substr(at_, 3) == "...") {
      if (std::exchange(has_ellipsis_, true)) return refuse_slice(fmt::format("byte {}: a second ...", at_));
      at_ += 3;
      item.kind = Item::Kind::Ellipsis;
      items_.push_back(item);
      return {};
    }
    item.start = parse_integer();
    skip_space();
    if (take(':')) {
      item.stop = parse_integer();
      skip_space();
      if (take(':')) item.step = parse_integer();
    } else {
      if (!item.start) return unexpected("an integer, a range or ...");
      item.kind = Item::Kind::Integer;
    }
    if (item.step == 0) return refuse_slice(fmt::format("byte {}: a step of 0", item.at));
    if (items_.size() - (has_ellipsis_ ? 1 : 0) == shape_.size()) {
      return refuse_slice(fmt::format("byte {}: more indices than the {} dimensions of {}", item.at,
                                      shape_.size(), shape_text(shape_)));
    }
    items_.push_back(item);
    return {};
  }

  /// Reads the number after any spaces, or returns nothing. A number that does not fit becomes the largest or
  /// smallest one, which no position equals: Python does the same with the bounds of a range.
  std::optional<std::int64_t> parse_integer() {
    skip_space();
    const bool is_negative = at_ + 1 < text_.size() && text_[at_] == '-' && is_digit(text_[at_ + 1]);
    if (is_negative) ++at_;
    if (at_ == text_.size() || !is_digit(text_[at_])) return std::nullopt;
    std::int64_t value = 0;
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
      const std::int64_t digit = text_[at_] - '0';
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_sub_overflow(value, digit, &value)) {  // count down: there is one more negative number
        value = std::numeric_limits<std::int64_t>::min();
        while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
        break;
      }
    }
    if (is_negative) return value;
    return value == std::numeric_limits<std::int64_t>::min() ? kMaxIndex : -value;
  }

  tl::unexpected<Error> unexpected(std::string_view due) const {
    if (at_ == text_.size())
      return refuse_slice(fmt::format("byte {}: the text ends, expected {}", at_, due));
    const auto is_letter = [](char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; };
    std::size_t end = at_;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    return refuse_slice(fmt::format("byte {}: found {}, expected {}", at_,
                                    in_quotes(text_.substr(at_, std::max<std::size_t>(end - at_, 1))), due));
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  void skip_space() { at_ = std::min(text_.find_first_not_of(' ', at_), text_.size()); }
  bool take(char wanted) {
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  std::string_view text_;
  std::span<const std::uint64_t> shape_;
  std::size_t at_ = 0;
  bool has_ellipsis_ = false;
  std::vector<Item> items_;
};

/// Selects the positions of a range in a dimension, as PySlice_AdjustIndices of CPython
/// (Objects/sliceobject.c).
Axis select_range(const Item& item, std::int64_t size) {
  const std::int64_t step = std::max(item.step.value_or(1), -kMaxIndex);
  const bool is_backwards = step < 0;
  const auto clip = [&](std::int64_t bound) {
    if (bound < 0) bound += size;
    return std::clamp<std::int64_t>(bound, is_backwards ? -1 : 0, is_backwards ? size - 1 : size);
  };
  const std::int64_t start = item.start ? clip(*item.start) : is_backwards ? size - 1 : 0;
  const std::int64_t stop = item.stop ? clip(*item.stop) : is_backwards ? -1 : size;
  const std::int64_t distance = is_backwards ? start - stop : stop - start;
  if (distance <= 0) return {0, step, 0, false};
  const std::int64_t count = (distance - 1) / (is_backwards ? -step : step) + 1;
  return {static_cast<std::uint64_t>(start), step, static_cast<std::uint64_t>(count), false};
}

Result<Axis> select(const Item& item, std::uint64_t size, std::size_t dimension) {
  if (size > static_cast<std::uint64_t>(kMaxIndex)) {
    return refuse_slice(
        fmt::format("dimension {} has {} elements, more than an index can count", dimension, size));
  }
  const auto signed_size = static_cast<std::int64_t>(size);
  if (item.kind == Item::Kind::Range) return select_range(item, signed_size);
  const std::int64_t index = *item.start;
  if (index < -signed_size || index >= signed_size) {
    return refuse_slice(
        fmt::format("byte {}: index {} is out of range for dimension {}, which has {} elements", item.at,
                    index, dimension, size));
  }
  return Axis{static_cast<std::uint64_t>(index < 0 ? index + signed_size : index), 1, 1, true};
}

/// Returns one Axis per dimension. The ellipsis, or the end of the text, selects all of each dimension that
/// the text does not mention.
Result<std::vector<Axis>> select_all(std::string_view text, std::span<const std::uint64_t> shape) {
  ItemParser parser(text, shape);
  const auto items = parser.parse();
  RETURN_IF_ERROR(items);
  const std::size_t unspoken = shape.size() - (items->size() - (parser.has_ellipsis() ? 1 : 0));
  std::vector<Axis> axes;
  axes.reserve(shape.size());
  const auto add = [&](const Item& item) -> Result<void> {
    auto axis = select(item, shape[axes.size()], axes.size());
    RETURN_IF_ERROR(axis);
    axes.push_back(*axis);
    return {};
  };
  for (const Item& item : *items) {
    const bool is_ellipsis = item.kind == Item::Kind::Ellipsis;
    for (std::size_t i = 0; i < (is_ellipsis ? unspoken : 1); ++i) {
      if (auto added = add(is_ellipsis ? Item{} : item); !added) return pass_on(std::move(added));
    }
  }
  while (axes.size() < shape.size()) {
    if (auto added = add(Item{}); !added) return pass_on(std::move(added));
  }
  return axes;
}

/// A loop in units of elements, before it is known to be whole bytes.
struct ElementLoop {
  std::uint64_t count = 0;
  std::int64_t stride = 0;
};

/// Returns the loops, outermost first, and merges neighbours that form one loop. Nothing overflows: every
/// dimension with more than one position is within the tensor.
std::vector<ElementLoop> element_loops(std::span<const Axis> axes, std::span<const std::uint64_t> strides) {
  std::vector<ElementLoop> loops;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].count == 1) continue;
    const auto count = static_cast<std::int64_t>(axes[i].count);
    const std::int64_t stride = axes[i].step * static_cast<std::int64_t>(strides[i]);
    if (!loops.empty() && loops.back().stride == count * stride) {
      loops.back() = {loops.back().count * axes[i].count, stride};
    } else {
      loops.push_back({axes[i].count, stride});
    }
  }
  return loops;
}

/// Completes a slice of at least one element with its loops.
Result<void> plan_walk(Slice& slice, std::span<const Axis> axes, Dtype dtype,
                       std::span<const std::uint64_t> shape) {
  std::vector<std::uint64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * shape[i - 1];
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) first += axes[i].first * strides[i];

  std::vector<ElementLoop> loops = element_loops(axes, strides);
  std::uint64_t run = 1;
  if (!loops.empty() && loops.back().stride == 1) {
    run = loops.back().count;
    loops.pop_back();
  }
  const std::uint64_t bits = bits_of(dtype);
  bool is_whole_bytes = first * bits % 8 == 0 && run * bits % 8 == 0;
  for (const ElementLoop& loop : loops) {
    // Modulo 8, neither the sign nor an overflow matters.
    is_whole_bytes = is_whole_bytes && static_cast<std::uint64_t>(loop.stride) * bits % 8 == 0;
  }
  if (!is_whole_bytes) {
    return refuse_slice(fmt::format(
        "an element of {} has {} bits, and the slice's runs of {} do not all begin and end with a "
        "whole byte",
        name_of(dtype), bits, run));
  }
  slice.size_bytes = slice.element_count * bits / 8;
  slice.first_byte = first * bits / 8;
  slice.run_bytes = run * bits / 8;
  std::uint64_t begin = slice.first_byte;
  std::uint64_t end = slice.first_byte + slice.run_bytes;
  for (const ElementLoop& loop : loops) {
    // Divide before multiplying: the product may not fit.
    const auto signed_bits = static_cast<std::int64_t>(bits);
    const std::int64_t stride_bytes = loop.stride / 8 * signed_bits + loop.stride % 8 * signed_bits / 8;
    slice.loops.push_back({loop.count, stride_bytes});
    const std::uint64_t reach = (loop.count - 1) * static_cast<std::uint64_t>(stride_bytes);
    (stride_bytes < 0 ? begin : end) += reach;
  }
  slice.extent = {begin, end - begin};
  return {};
}

Result<Slice> slice_of(std::string_view text, Dtype dtype, std::span<const std::uint64_t> shape) {
  if (shape.size() > kMaxSliceRank) {
    return refuse_slice(
        fmt::format("the tensor has {} dimensions, a slice has at most {}", shape.size(), kMaxSliceRank));
  }
  RETURN_IF_ERROR(data_size_bytes(dtype, shape));
  const auto axes = select_all(text, shape);
  RETURN_IF_ERROR(axes);
  Slice slice;
  slice.element_count = 1;
  for (const Axis& axis : *axes) {
    if (!axis.is_dropped) slice.shape.push_back(axis.count);
  }
  if (std::ranges::find(slice.shape, 0U) != slice.shape.end()) {
    slice.element_count = 0;
    return slice;
  }
  for (const std::uint64_t size : slice.shape) slice.element_count *= size;
  RETURN_IF_ERROR(plan_walk(slice, *axes, dtype, shape));
  return slice;
}

}  // namespace

Result<Slice> parse_slice(std::string_view text, Dtype dtype, std::span<const std::uint64_t> shape) {
  return guard_memory([&] { return slice_of(text, dtype, shape); });
}

SliceCursor::SliceCursor(const Slice& slice, std::uint64_t run) : slice_(slice), offset_(slice.first_byte) {
  if (slice.loops.empty()) return;
  innermost_ = slice.loops.back();
  for (std::size_t i = slice.loops.size(); i-- > 0;) {
    const Slice::Loop& loop = slice.loops[i];
    positions_[i] = run % loop.count;
    run /= loop.count;
    offset_ += positions_[i] * static_cast<std::uint64_t>(loop.stride_bytes);
  }
  position_ = positions_[slice.loops.size() - 1];
}

void SliceCursor::next_row() {
  offset_ -= innermost_.count * static_cast<std::uint64_t>(innermost_.stride_bytes);
  position_ = 0;
  if (slice_.loops.empty()) return;
  for (std::size_t i = slice_.loops.size() - 1; i-- > 0;) {
    const Slice::Loop& loop = slice_.loops[i];
    offset_ += static_cast<std::uint64_t>(loop.stride_bytes);
    if (++positions_[i] != loop.count) return;
    offset_ -= loop.count * static_cast<std::uint64_t>(loop.stride_bytes);
    positions_[i] = 0;
  }
}

}  // namespace stfs
