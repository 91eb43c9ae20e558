// Damage that means harm, decided by a seed: the changes that every fuzzer makes to its inputs. What has a
// structure is damaged along it, by those who know it (archive_mutator.h, journal_mutator.h).
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

/// One of the list.
template <class List>
auto& one_of(Choices& choices, List&& list) {
  return list[choices.below(std::size(list))];
}

/// A number at which arithmetic goes wrong: at the ends of its widths, at blocks, small, or near `about`.
std::uint64_t extreme_number(Choices& choices, std::uint64_t about);

/// As std::ranges::equal, which goes byte by byte.
inline bool is_same(std::span<const std::byte> left, std::span<const std::byte> right) {
  return left.size() == right.size() &&
         (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0);
}

std::uint64_t number_at(std::span<const std::byte> bytes, std::uint64_t offset);
/// Little-endian, as much of it as there is room for.
void put_number(std::span<std::byte> bytes, std::uint64_t offset, std::uint64_t value, std::size_t size = 8);

/// There is room for all of it.
inline void put_text(std::span<std::byte> bytes, std::uint64_t offset, std::string_view text) {
  std::memcpy(bytes.data() + offset, text.data(), text.size());
}

/// One change that begins in that part of the bytes: bits, numbers, runs, cuts, pieces moved or taken from
/// `other`, which is another input of the same kind.
/// @param may_resize  bytes may be put in and taken out.
void mutate_bytes(Bytes& bytes, ByteRange part, std::span<const std::byte> other, Choices& choices,
                  bool may_resize);

/// One change of a JSON text: pieces of its grammar, numbers, strings, whole values.
void mutate_json(std::string& json, std::string_view other, Choices& choices);

}  // namespace stfs::test
