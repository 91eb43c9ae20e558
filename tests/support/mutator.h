// Damages bytes and JSON as fuzzers do, by decisions of a seed. archive_mutator.h and journal_mutator.h
// damage archives and journals along their structure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/byte_range.h"
#include "tests/support/choices.h"

namespace stfs::test {

using Bytes = std::vector<std::byte>;

/// Draws an element of the list.
template <class List>
auto& one_of(Choices& choices, List&& list) {
  return list[choices.below(std::size(list))];
}

/// A number for which careless arithmetic fails: a power of two, a limit, a multiple of a block, or near
/// `about`.
std::uint64_t extreme_number(Choices& choices, std::uint64_t about);

/// Compares as std::ranges::equal, but faster.
inline bool is_same(std::span<const std::byte> left, std::span<const std::byte> right) {
  return left.size() == right.size() &&
         (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0);
}

std::uint64_t number_at(std::span<const std::byte> bytes, std::uint64_t offset);
/// Writes the number as little-endian bytes, as many as there is room for.
void put_number(std::span<std::byte> bytes, std::uint64_t offset, std::uint64_t value, std::size_t size = 8);

/// The caller ensures that there is room for the whole text.
inline void put_text(std::span<std::byte> bytes, std::uint64_t offset, std::string_view text) {
  std::memcpy(bytes.data() + offset, text.data(), text.size());
}

/// Makes one change that begins in that part of the bytes: it changes bits, numbers or runs, cuts, or moves
/// pieces of these bytes or of `other`, another input of the same kind.
/// @param may_resize  allows changes that insert or remove bytes.
void mutate_bytes(Bytes& bytes, ByteRange part, std::span<const std::byte> other, Choices& choices,
                  bool may_resize);

/// Makes one change of a JSON text: of characters, pieces of its grammar, numbers or whole values.
void mutate_json(std::string& json, std::string_view other, Choices& choices);

}  // namespace stfs::test
