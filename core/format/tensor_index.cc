#include "core/format/tensor_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <iterator>
#include <limits>

#include "core/base/name_hash.h"

namespace stfs {
namespace {

// Returns the bits of the hash that a slot holds: all bits that the position does not use.
std::uint32_t tag_of(std::uint64_t hash, std::uint32_t slot_mask) {
  return static_cast<std::uint32_t>(hash >> 32) & ~slot_mask;
}

std::uint64_t saturating_product(std::span<const std::uint64_t> factors) {
  std::uint64_t product = 1;
  for (const std::uint64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) {
      return std::numeric_limits<std::uint64_t>::max();
    }
  }
  return product;
}

}  // namespace

std::uint64_t element_count(std::span<const std::uint64_t> shape) {
  return saturating_product(shape);
}

std::optional<std::vector<std::uint64_t>> shape_of_text(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::uint64_t> shape;
  while (!text.empty()) {
    std::uint64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc{}) return std::nullopt;
    shape.push_back(size);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty()) return shape;
    if (!text.starts_with(',') || text == ",") return std::nullopt;
    text.remove_prefix(1);
    while (text.starts_with(' ')) text.remove_prefix(1);
  }
  return shape;
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  std::string text = "[";
  for (const std::uint64_t size : shape) {
    if (text.size() > 1) text += ',';
    fmt::format_to(std::back_inserter(text), "{}", size);
  }
  return text += ']';
}

Tensor TensorIndex::operator[](std::uint32_t position) const {
  const Entry& entry = entries_[position];
  return {name_at(entry),
          entry.dtype,
          {dimensions_.begin() + entry.shape_at, entry.rank},
          {entry.begin, entry.end - entry.begin}};
}

std::optional<std::uint32_t> TensorIndex::find(std::string_view name) const {
  if (slots_.empty()) return std::nullopt;
  const auto mask = static_cast<std::uint32_t>(slots_.size() - 1);
  const std::uint64_t hash = name_hash(name);
  const std::uint32_t tag = tag_of(hash, mask);
  for (std::uint32_t at = static_cast<std::uint32_t>(hash) & mask; slots_[at] != 0; at = (at + 1) & mask) {
    if ((slots_[at] & ~mask) != tag) continue;
    const std::uint32_t position = (slots_[at] & mask) - 1;
    if (name_at(entries_[position]) == name) return position;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> TensorIndex::find(ByteRange data) const {
  const auto is_before = [&](const Entry& entry) {
    return entry.begin < data.offset || (entry.begin == data.offset && entry.end < data.end());
  };
  const Entry* const found = std::partition_point(entries_.begin(), entries_.end(), is_before);
  if (found == entries_.end() || found->begin != data.offset || found->end != data.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - entries_.begin());
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> TensorIndex::index_names() {
  if (entries_.empty()) return std::nullopt;
  slots_.assign_zero(std::bit_ceil(entries_.size() + entries_.size() / 2 + 1));
  const auto mask = static_cast<std::uint32_t>(slots_.size() - 1);
  for (std::uint32_t position = 0; position < size(); ++position) {
    const std::string_view name = name_at(entries_[position]);
    const std::uint64_t hash = name_hash(name);
    const std::uint32_t tag = tag_of(hash, mask);
    std::uint32_t at = static_cast<std::uint32_t>(hash) & mask;
    for (; slots_[at] != 0; at = (at + 1) & mask) {
      if ((slots_[at] & ~mask) != tag) continue;
      const std::uint32_t other = (slots_[at] & mask) - 1;
      if (name_at(entries_[other]) == name) return std::pair(other, position);
    }
    slots_[at] = tag | (position + 1);
  }
  return std::nullopt;
}

std::uint64_t TensorIndex::parameters() const {
  std::uint64_t sum = 0;
  for (const Entry& entry : entries_) {
    const std::uint64_t count = saturating_product({dimensions_.begin() + entry.shape_at, entry.rank});
    if (__builtin_add_overflow(sum, count, &sum)) return std::numeric_limits<std::uint64_t>::max();
  }
  return sum;
}

std::uint64_t TensorIndex::memory_bytes() const {
  return names_.capacity_bytes() + dimensions_.capacity_bytes() + entries_.capacity_bytes() +
         slots_.capacity_bytes();
}

}  // namespace stfs
