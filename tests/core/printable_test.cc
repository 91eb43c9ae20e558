// core/base/printable.h: untrusted text sends no command to a terminal, and adds no line to a log.
#include "core/base/printable.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/catch.h"

using namespace stfs;

namespace {

std::string in_utf8(char32_t character) {
  std::string json = character < 0x10000
                         ? fmt::format("\"\\u{:04x}\"", static_cast<unsigned>(character))
                         : fmt::format("\"\\u{:04x}\\u{:04x}\"",
                                       0xd800 + ((static_cast<unsigned>(character) - 0x10000) >> 10),
                                       0xdc00 + ((static_cast<unsigned>(character) - 0x10000) & 0x3ff));
  return nlohmann::json::parse(json).get<std::string>();
}

/// Returns texts that a terminal or a reader of the log must never get.
std::vector<std::string> dangerous() {
  std::vector<std::string> texts;
  const auto add = [&](char32_t first, char32_t last) {
    for (char32_t at = first; at <= last; ++at) texts.push_back(in_utf8(at));
  };
  add(0x00, 0x1f);
  add(0x7f, 0x9f);  // DEL and C1: U+009B begins an escape sequence, as ESC [ does
  add(0x61c, 0x61c);
  add(0x200e, 0x200f);
  add(0x2028, 0x202e);
  add(0x2066, 0x2069);
  add(0xfeff, 0xfeff);
  add(0xe0000, 0xe007f);
  return texts;
}

}  // namespace

TEST_CASE("no control character, mark of direction or separator is printed", "[core][printable]") {
  for (const std::string& text : dangerous()) {
    CAPTURE(printable(text));
    CHECK(printable("a" + text + "b").find(text) == std::string::npos);
    const std::string json = printable_json(nlohmann::json(text).dump());
    CHECK(json.find(text) == std::string::npos);
    CHECK(nlohmann::json::parse(json).get<std::string>() == text);
  }
}

TEST_CASE("each escape says which character it was", "[core][printable]") {
  CHECK(printable("a\x1b[2J\b\x7f") == "a\\x1b[2J\\x08\\x7f");
  CHECK(printable("\n\t\r") == "\\n\\t\\r");
  CHECK(printable(std::string_view("\0", 1)) == "\\x00");
  CHECK(printable("\u009b\u202e\u2069") == "\\u009b\\u202e\\u2069");
  CHECK(printable("\U000e0041") == "\\U000e0041");
  CHECK(printable_json("\"\x7f\u009b\U000e0041\"") == R"("\u007f\u009b\udb40\udc41")");
}

TEST_CASE("bytes that are not UTF-8 are spelled out, and JSON stays JSON", "[core][printable]") {
  CHECK(printable("a\xff\xc3") == "a\\xff\\xc3");
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");
  CHECK(printable("\x9b[2J") == "\\x9b[2J");
  CHECK(printable_json("\"a\xff\"") == "\"a\xef\xbf\xbd\"");
}

TEST_CASE("other characters, and the white space between values of JSON, stay", "[core][printable]") {
  CHECK(printable("weight 重み \\ \" ok") == "weight 重み \\ \" ok");
  CHECK(printable_json("{\n\t\"größe\": \"重み\"}\r\n") == "{\n\t\"größe\": \"重み\"}\r\n");
}
