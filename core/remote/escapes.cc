#include "core/remote/escapes.h"

#include <fmt/format.h>

#include <cctype>

namespace stfs {

bool is_unreserved(unsigned char byte) {
  return std::isalnum(byte) != 0 || byte == '-' || byte == '.' || byte == '_' || byte == '~';
}

std::string escaped_part(std::string_view text, std::string_view kept) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_unreserved(byte) || kept.find(c) != kept.npos) {
      result += c;
    } else {
      result += fmt::format("%{:02X}", byte);
    }
  }
  return result;
}

std::string unescaped_part(std::string_view text) {
  const auto digit = [](char c) { return std::isdigit(c) != 0 ? c - '0' : std::tolower(c) - 'a' + 10; };
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool is_escape = text[at] == '%' && at + 2 < text.size() && std::isxdigit(text[at + 1]) != 0 &&
                           std::isxdigit(text[at + 2]) != 0;
    result += is_escape ? static_cast<char>(digit(text[at + 1]) * 16 + digit(text[at + 2])) : text[at];
    if (is_escape) at += 2;
  }
  return result;
}

}  // namespace stfs
