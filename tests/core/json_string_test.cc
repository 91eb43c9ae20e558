// core/format/json_string.h and core/base/utf8.h
#include "core/format/json_string.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "core/base/utf8.h"
#include "support/catch.h"

using namespace stfs;

namespace {
std::string json(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}
}  // namespace

TEST_CASE("JSON strings are escaped as the reference escapes them", "[core][json_string]") {
  CHECK(json("a\"b\\c") == R"("a\"b\\c")");
  CHECK(json("\b\f\n\r\t") == R"("\b\f\n\r\t")");
  CHECK(json(std::string_view("\0\x1f", 2)) == R"("\u0000\u001f")");
  CHECK(json("/\x7fgröße") == "\"/\x7fgröße\"");
}

TEST_CASE("what stands between the quotes of a JSON string is read as nlohmann_json reads it",
          "[core][json_string]") {
  const std::string pieces[] = {
      "a",           "größe",           R"(\n)",           R"(\\)",           R"(\")",     R"(\/)",
      R"(\b\f\r\t)", R"(\u0000)",       R"(\u007f)",       R"(\u0080)",       R"(\u07FF)", R"(\u0800)",
      R"(\uffff)",   R"(\ud800\udc00)", R"(\udbff\udfff)", R"(\uD83D\uDe00)", R"(\u0041)"};
  std::mt19937 random(20261123);
  for (int round = 0; round < 20'000; ++round) {
    std::string inside;
    for (auto count = random() % 6; count > 0; --count) inside += pieces[random() % std::size(pieces)];
    CAPTURE(inside);
    REQUIRE(unescaped_json(inside) == nlohmann::json::parse('"' + inside + '"').get<std::string>());
  }
}

TEST_CASE("names in messages are printable, whatever they hold", "[core][json_string]") {
  CHECK(in_quotes("größe") == "\"größe\"");
  CHECK(in_quotes("a\nb\x1b[2J") == R"("a\nb\u001b[2J")");
  CHECK(in_quotes("\x7f\u009b\u202e") == R"("\u007f\u009b\u202e")");
  CHECK(in_quotes("a\xff\xc3") == R"("a\xff\xc3")");
}

TEST_CASE("a long name is cut between two characters", "[core][json_string]") {
  CHECK(in_quotes(std::string(100, 'n')) == '"' + std::string(100, 'n') + '"');
  CHECK(in_quotes(std::string(101, 'n')) == '"' + std::string(100, 'n') + "...\" (101 bytes)");
  std::string umlauts = "n";
  for (int i = 0; i < 100; ++i) umlauts += "ü";
  const std::string shown = in_quotes(umlauts);
  CHECK(is_utf8(shown));
  CHECK(shown.find("\\x") == std::string::npos);
  CHECK(in_quotes(std::string(1000, '\x80')).size() < 500);
}

TEST_CASE("UTF-8 is told from what only looks like it", "[core][utf8]") {
  for (const char* text : {"", "plain", "ü", "权", "😀", "\xed\x9f\xbf", "\xee\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    CAPTURE(text);
    CHECK(is_utf8(text));
  }
  for (const char* text :
       {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98"}) {
    CAPTURE(text);
    CHECK(!is_utf8(text));
    // Runs of ASCII are skipped in blocks. An error behind such a run is found at its place.
    CHECK(valid_utf8_prefix("0123456789abc" + std::string(text)) == 13);
  }
}
