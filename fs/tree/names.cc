#include "fs/tree/names.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>

#include "core/base/utf8.h"

namespace stfs {
namespace {

constexpr std::size_t kHashDigits = 16;

bool must_be_encoded(char character) {
  const auto byte = static_cast<unsigned char>(character);
  return byte < 0x20 || byte == 0x7f || byte == '%' || byte == '/';
}

bool is_reserved(std::string_view name) {
  return name == "." || name == ".." || name == kViewsDirectory;
}

/// The longest prefix of at most `limit` bytes that splits neither a UTF-8 sequence nor a %XX.
std::string_view cut_between_characters(std::string_view encoded, std::size_t limit) {
  if (encoded.size() <= limit) return encoded;
  std::size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(encoded[end]) & 0xC0) == 0x80) --end;
  for (std::size_t back = 1; back <= 2 && back <= end; ++back) {
    if (encoded[end - back] == '%') {
      end -= back;
      break;
    }
  }
  return encoded.substr(0, end);
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxFileNameBytes && !is_reserved(name) &&
         std::ranges::none_of(name, must_be_encoded);
}

std::string file_name_of(std::string_view name) {
  if (name.empty()) return "%";
  std::string encoded;
  encoded.reserve(name.size());
  std::string_view rest = name;
  if (is_reserved(name)) {
    encoded = name == ".." ? "%2E%2E" : "%2E";
    rest = name == ".." ? std::string_view{} : name.substr(1);
  }
  for (const char character : rest) {
    if (must_be_encoded(character)) {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(character));
    } else {
      encoded += character;
    }
  }
  return encoded.size() <= kMaxFileNameBytes ? encoded : told_apart(encoded, name);
}

std::optional<std::string> name_of_file(std::string_view file_name) {
  std::string name;
  for (std::size_t at = 0; at < file_name.size(); ++at) {
    if (file_name[at] != '%' || file_name.size() == 1) {
      name += file_name[at];
      continue;
    }
    unsigned byte = 0;
    const auto digits = file_name.substr(at + 1, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (error != std::errc{} || end != digits.data() + 2) return std::nullopt;
    name += static_cast<char>(byte);
    at += 2;
  }
  if (file_name == "%") name.clear();
  return is_utf8(name) && file_name_of(name) == file_name ? std::optional(std::move(name)) : std::nullopt;
}

std::string told_apart(std::string_view encoded, std::string_view true_name, std::size_t most_bytes) {
  const std::string_view prefix = cut_between_characters(encoded, most_bytes - 1 - kHashDigits);
  return fmt::format("{}~{:016x}", prefix, XXH3_64bits(true_name.data(), true_name.size()));
}

std::vector<std::string_view> dotted_parts(std::string_view name) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t dot = parts.size() < kMaxDepth ? name.find('.') : std::string_view::npos;
    parts.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    name.remove_prefix(dot + 1);
  }
}

}  // namespace stfs
