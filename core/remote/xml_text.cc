#include "core/remote/xml_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

namespace stfs {
namespace {

void append_utf8(std::string& text, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  const auto put_rest = [&](unsigned shift) { put(0x80U | ((code >> shift) & 0x3FU)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0U | (code >> 6U));
    put_rest(0);
  } else if (code < 0x10000) {
    put(0xE0U | (code >> 12U));
    put_rest(6);
    put_rest(0);
  } else {
    put(0xF0U | (code >> 18U));
    put_rest(12);
    put_rest(6);
    put_rest(0);
  }
}

/// Appends the character of an escape, such as "amp" or "#x41". @return false: it is none.
bool append_escape(std::string& text, std::string_view escape) {
  constexpr std::array<std::pair<std::string_view, char>, 5> kNamed = {
      {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};
  for (const auto& [name, character] : kNamed) {
    if (escape == name) {
      text += character;
      return true;
    }
  }
  if (!escape.starts_with('#')) return false;
  escape.remove_prefix(1);
  const bool is_hexadecimal = escape.starts_with('x');
  if (is_hexadecimal) escape.remove_prefix(1);
  std::uint32_t code = 0;
  const auto [end, failed] =
      std::from_chars(escape.data(), escape.data() + escape.size(), code, is_hexadecimal ? 16 : 10);
  if (failed != std::errc() || end != escape.data() + escape.size() || code > 0x10FFFF) return false;
  append_utf8(text, code);
  return true;
}

std::string without_escapes(std::string_view xml) {
  std::string text;
  while (!xml.empty()) {
    const std::size_t end = xml.front() == '&' ? xml.find(';') : xml.npos;
    if (end != xml.npos && append_escape(text, xml.substr(1, end - 1))) {
      xml.remove_prefix(end + 1);
    } else {
      text += xml.front();
      xml.remove_prefix(1);
    }
  }
  return text;
}

}  // namespace

std::vector<std::string_view> xml_elements(std::string_view xml, std::string_view name) {
  const std::string open = fmt::format("<{}", name);
  const std::string close = fmt::format("</{}>", name);
  std::vector<std::string_view> elements;
  while (true) {
    const std::size_t at = xml.find(open);
    if (at == xml.npos) return elements;
    xml.remove_prefix(at + open.size());
    if (xml.empty() || (xml.front() != '>' && xml.front() != ' ')) continue;  // another name begins with it
    const std::size_t begin = xml.find('>');
    const std::size_t end = xml.find(close);
    if (begin == xml.npos || end == xml.npos || begin > end) return elements;
    elements.push_back(xml.substr(begin + 1, end - begin - 1));
    xml.remove_prefix(end + close.size());
  }
}

std::string xml_value(std::string_view xml, std::string_view name) {
  const auto elements = xml_elements(xml, name);
  return elements.empty() ? std::string() : without_escapes(elements.front());
}

}  // namespace stfs
