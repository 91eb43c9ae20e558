// Implements the table of well-formed byte sequences (Unicode 15, table 3-7).
#include "core/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace stfs {
namespace {

// Size of the valid sequence at the front of a non-empty text, or 0.
std::size_t sequence_size(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<std::uint8_t>(text[i]) : 0U; };
  const auto within = [&](std::size_t i, unsigned low, unsigned high) {
    return byte(i) >= low && byte(i) <= high;
  };
  const auto continues = [&](std::size_t i) { return within(i, 0x80, 0xBF); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool second = within(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF);
    return second && continues(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool second = within(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF);
    return second && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

// Headers are ASCII except for a few names, so check eight bytes at a time.
constexpr std::size_t kAsciiBlockBytes = 8;
bool is_ascii_block(std::string_view block) {
  std::uint64_t bytes = 0;
  if (block.size() < kAsciiBlockBytes) return false;
  std::memcpy(&bytes, block.data(), kAsciiBlockBytes);
  return (bytes & 0x8080808080808080U) == 0;
}

}  // namespace

Utf8Character first_of_utf8(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t size_bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  char32_t character = lead & (0x7fU >> size_bytes);
  for (std::size_t at = 1; at < size_bytes; ++at) character = character << 6 | (byte(at) & 0x3fU);
  return {character, size_bytes};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (is_ascii_block(text.substr(at, kAsciiBlockBytes))) {
      at += kAsciiBlockBytes;
      continue;
    }
    const std::size_t size = sequence_size(text.substr(at));
    if (size == 0) break;
    at += size;
  }
  return at;
}

}  // namespace stfs
