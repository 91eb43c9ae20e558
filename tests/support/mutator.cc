#include "tests/support/mutator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace stfs::test {
namespace {

using namespace std::string_view_literals;

constexpr std::uint64_t kBlock = 4096;

constexpr std::string_view kShortPieces[] = {
    "{",        "}",       "[",    "]",        ",",        ":",    "\"",    "\\",    "\\u",  "\\ud800",
    "\\udc00",  "\\u0000", "\\n",  "\0"sv,     " ",        "\n",   "\t",    "\v",    "0",    "-",
    "-0",       "1.0",     "1e2",  "01",       "null",     "true", "NaN",   "{}",    "[]",   "\"a\"",
    "\"b\":1,", "\xff",    "\xc3", "\xc3\xa9", "\xc0\x80", "/**/", "[0,0]", "[0,1]", "[1,0]"};
constexpr std::string_view kLongPieces[] = {
    "\xed\xa0\x80",      "\xef\xbb\xbf",      "\"shape\":",    "\"dtype\":",
    "\"data_offsets\":", "\"__metadata__\":", "{\"k\":\"v\"}", "\"x\":[[{}]],"};

constexpr std::string_view kNumbers[] = {"0",
                                         "1",
                                         "255",
                                         "4294967295",
                                         "4294967296",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "18446744073709551616",
                                         "2305843009213693952",
                                         "99999999999999999999999999",
                                         "-1",
                                         "1.5"};

std::string_view any_piece(Choices& choices) {
  return choices.one_in(5) ? one_of(choices, kLongPieces) : one_of(choices, kShortPieces);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The end of the value, string or list at `at`, found by brackets and quotes only.
std::size_t end_of_value(std::string_view json, std::size_t at) {
  int depth = 0;
  for (std::size_t end = at; end < json.size(); ++end) {
    const char c = json[end];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == '"') end = std::min(json.find('"', end + 1), json.size() - 1);
    if (depth <= 0 && (c == '}' || c == ']' || c == '"')) return end + 1;
    if (depth <= 0 && end + 1 < json.size() && (json[end + 1] == ',' || json[end + 1] == '}')) return end + 1;
  }
  return json.size();
}

/// The place of the first character of a kind, searched from `at` to the end and then from the beginning.
template <class Is>
std::size_t find_around(std::string_view json, std::size_t at, const Is& is) {
  const auto from = json.begin() + static_cast<std::ptrdiff_t>(at);
  auto found = std::find_if(from, json.end(), is);
  if (found == json.end()) {
    found = std::find_if(json.begin(), from, is);
    if (found == from) return json.size();
  }
  return static_cast<std::size_t>(found - json.begin());
}

void change_number(std::string& json, std::size_t at, Choices& choices) {
  at = find_around(json, at, is_digit);
  if (at == json.size()) return;
  std::size_t end = at;
  while (end < json.size() && is_digit(json[end])) ++end;
  while (at > 0 && is_digit(json[at - 1])) --at;
  std::string number(one_of(choices, kNumbers));
  if (choices.below(2) == 0 && end - at < 19) {
    // A little more or less; some sums wrap around at 64 bits.
    constexpr std::array<std::uint64_t, 6> kSteps = {1, 8, 4096, std::uint64_t{1} << 61U, UINT64_MAX, 2};
    number = std::to_string(std::stoull(json.substr(at, end - at)) + one_of(choices, kSteps));
  }
  json.replace(at, end - at, number);
}

/// Removes or doubles one value, or replaces it by another value.
void change_value(std::string& json, std::size_t at, std::string_view other, Choices& choices) {
  const auto begins = [](char c) { return c == '{' || c == '[' || c == '"'; };
  at = find_around(json, at, begins);
  if (at == json.size()) return;
  const std::size_t size = end_of_value(json, at) - at;
  switch (choices.below(4)) {
    case 0: json.erase(at, size); return;
    case 1: json.insert(at, json.substr(at, size) + (choices.one_in(3) ? "" : ",")); return;
    case 2: {
      const std::size_t from = find_around(json, choices.below(json.size()), begins);
      const std::string value = json.substr(from, end_of_value(json, from) - from);
      json.replace(at, size, value);
      return;
    }
    default: {
      if (other.empty()) return;
      const std::size_t from = find_around(other, choices.below(other.size()), begins);
      if (from < other.size()) json.replace(at, size, other.substr(from, end_of_value(other, from) - from));
    }
  }
}

void nest(std::string& json, std::size_t at, Choices& choices) {
  // Mostly near the largest depth that is read; rarely so deep that a recursion would end the process.
  const std::size_t depth = choices.one_in(200) ? 60'000 : 100 + choices.below(60);
  const bool is_list = choices.below(2) == 0;
  std::string deep;
  for (std::size_t level = 0; level < depth; ++level) deep += is_list ? "[" : "{\"\":";
  if (!is_list) deep += "0";
  if (!choices.one_in(3)) deep.append(depth, is_list ? ']' : '}');
  // The field has an unknown name, so a reader has to parse all of its value.
  json.insert(at, "\"x\":" + deep + ",");
}

}  // namespace

std::uint64_t extreme_number(Choices& choices, std::uint64_t about) {
  const std::uint64_t step = choices.below(3);
  switch (choices.below(8)) {
    case 0: return step;
    case 1: return UINT64_MAX - step;
    case 2: return (std::uint64_t{1} << choices.below(64)) - 1 + step;
    case 3: return about + step - 1;
    case 4: return about ^ std::uint64_t{1} << choices.below(64);
    case 5: return kBlock * choices.below(40);
    case 6: return UINT64_MAX - kBlock * choices.below(4) + 1;
    default: return about + kBlock * (choices.below(5) - 2);
  }
}

std::uint64_t number_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  std::uint64_t value = 0;
  if (offset >= bytes.size()) return 0;
  const std::size_t size = std::min<std::uint64_t>(8, bytes.size() - offset);
  for (std::size_t at = size; at-- > 0;) {
    value = value << 8U | std::to_integer<std::uint64_t>(bytes[offset + at]);
  }
  return value;
}

void put_number(std::span<std::byte> bytes, std::uint64_t offset, std::uint64_t value, std::size_t size) {
  for (std::size_t at = 0; at < size && offset + at < bytes.size(); ++at, value >>= 8U) {
    bytes[offset + at] = static_cast<std::byte>(value);
  }
}

void mutate_bytes(Bytes& bytes, ByteRange part, std::span<const std::byte> other, Choices& choices,
                  bool may_resize) {
  part = part.intersection({0, bytes.size()});
  if (part.empty()) return;
  const std::size_t at = part.offset + choices.below(part.size_bytes);
  const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  const std::size_t left = bytes.size() - at;
  const std::size_t some = std::min(left, 1 + choices.below(choices.one_in(4) ? 300 : 16));
  switch (choices.below(may_resize ? 11 : 8)) {
    case 0:
    case 1: *place ^= static_cast<std::byte>(1U << choices.below(8)); return;
    case 2: *place = static_cast<std::byte>(choices.below(256)); return;
    case 3:
    case 4: {
      constexpr std::array<std::size_t, 4> kWidths = {8, 4, 2, 1};
      const std::uint64_t aligned = choices.one_in(3) ? at : at - at % 4;
      const std::size_t width =
          one_of(choices, kWidths);  // a separate statement: each compiler draws in the same order
      put_number(bytes, aligned, extreme_number(choices, number_at(bytes, aligned)), width);
      return;
    }
    case 5: std::fill_n(place, some, choices.below(2) == 0 ? std::byte{0} : std::byte{0xff}); return;
    case 6: {
      const std::size_t from = choices.below(bytes.size());
      std::memmove(&*place, bytes.data() + from, std::min(some, bytes.size() - from));
      return;
    }
    case 7:
      if (at < other.size()) std::memcpy(&*place, other.data() + at, std::min(some, other.size() - at));
      return;
    case 8: bytes.resize(at); return;
    case 9: bytes.erase(place, place + static_cast<std::ptrdiff_t>(some)); return;
    default: bytes.insert(place, some, static_cast<std::byte>(choices.below(256))); return;
  }
}

void mutate_json(std::string& json, std::string_view other, Choices& choices) {
  if (json.empty()) json = "{}";
  const std::size_t at = choices.below(json.size());
  const std::size_t some = 1 + choices.below(8);
  switch (choices.below(12)) {
    case 0: json[at] = static_cast<char>(choices.below(256)); return;
    case 1: json.erase(at, some); return;
    case 2: json.insert(at, any_piece(choices)); return;
    case 3: json.replace(at, some, any_piece(choices)); return;
    case 4: json.insert(at, json.substr(choices.below(json.size()), 4 * some)); return;
    case 5:
    case 6: change_number(json, at, choices); return;
    case 7:
    case 8: change_value(json, at, other, choices); return;
    case 9:
      if (at < other.size()) json.replace(at, json.size() - at, other.substr(at));
      return;
    case 10: json.resize(at); return;
    default:
      // Rarely, because it takes long.
      if (choices.one_in(20)) nest(json, std::min(json.find('{') + 1, json.size()), choices);
      json.insert(json.size() - 1, some, ' ');
      return;
  }
}

}  // namespace stfs::test
