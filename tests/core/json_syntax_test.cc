// core/format/json_syntax.h
#include "core/format/json_syntax.h"

#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "support/catch.h"

using stfs::find_json_error;

namespace {
constexpr unsigned kDepth = 127;
}

TEST_CASE("the syntax check lets JSON through", "[core][json_syntax]") {
  for (const char* text : {"{}", " [ ] ", "null", "true", "false", "0", "-0", "-1.5e+7", "1E5", "\"\"",
                           R"({"a":[1,{"b":null},"\u00e9\ud83d\ude00\n\/"]})", "[[],[[]],{}]"}) {
    CAPTURE(text);
    CHECK(!find_json_error(text, kDepth));
  }
}

TEST_CASE("the syntax check says where JSON ends to be JSON", "[core][json_syntax]") {
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"", 0},       {"{", 1},        {"{\"a\"}", 4}, {"{\"a\":1,}", 7},  {"[1,]", 3},      {"[1 2]", 3},
      {"nul", 0},    {"01", 1},       {"1.", 2},      {"1e", 2},          {"-", 1},         {"{}x", 2},
      {"\"a\nb", 2}, {"\"a\\q\"", 2}, {"\"abc", 0},   {"\"\\ud800\"", 1}, {"\"\\u12\"", 1}, {"{a:1}", 1},
      {"\"a\\", 2},
  };
  for (const auto& [text, position] : cases) {
    CAPTURE(text);
    const auto error = find_json_error(text, kDepth);
    REQUIRE(error);
    CHECK(error->position == position);
    CHECK(!error->why.empty());
  }
}

TEST_CASE("the syntax check stops at its depth, not at the stack's", "[core][json_syntax]") {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  CHECK(!find_json_error(nested(127), kDepth));
  CHECK(find_json_error(nested(128), kDepth)->position == 127);
  CHECK(find_json_error(nested(1'000'000), kDepth)->position == 127);
}

TEST_CASE("a number of a million digits passes, a longer one does not", "[core][json_syntax]") {
  const auto digits = [](std::size_t count) { return "[0." + std::string(count - 2, '1') + "]"; };
  CHECK(!find_json_error(digits(stfs::kMaxNumberBytes), kDepth));
  CHECK(find_json_error(digits(stfs::kMaxNumberBytes + 1), kDepth)->position == 1);
}

TEST_CASE("a number that no double can hold is an error, one that is nearly 0 is none",
          "[core][json_syntax]") {
  const std::string zeros(400, '0');
  for (const std::string& number :
       {std::string("1.7976931348623157e308"), std::string("1e-999"), std::string("0e999"),
        "0." + zeros + "1", "1" + zeros + "e-200", "0." + zeros + "1e600", std::string("-5e-324"),
        "1e-" + zeros + "9999999999999999999",
        zeros.substr(0, 1) + "." + zeros + "e" + zeros + "99999999999999999999"}) {
    CAPTURE(number);
    CHECK(!find_json_error("[" + number + "]", kDepth, stfs::Numbers::Doubles));
  }
  for (const std::string& number :
       {std::string("1e309"), std::string("-1e309"), std::string("1E+999"), "1" + zeros, "1" + zeros + "e-50",
        "0." + zeros + "1e800", std::string("1e99999999999999999999"), std::string(1'000'000, '1')}) {
    CAPTURE(number.substr(0, 50));
    const auto error = find_json_error("[" + number + "]", kDepth, stfs::Numbers::Doubles);
    REQUIRE(error);
    CHECK(!find_json_error("[" + number + "]", kDepth));
    CHECK(error->position == 1);
    CHECK(error->why == "a number out of range");
  }
}

TEST_CASE("the syntax check and nlohmann_json agree on random text", "[core][json_syntax]") {
  // The texts are made of pieces rather than of bytes, so that many of them are JSON.
  const std::string pieces[] = {"{",
                                "}",
                                "[",
                                "]",
                                ",",
                                ":",
                                "\"a\"",
                                "\"\\n\"",
                                "1",
                                "-0",
                                " ",
                                "\n",
                                "1.5",
                                "1e-3",
                                "null",
                                "\"",
                                "\\",
                                "x",
                                "0",
                                "\"\\u00e9\"",
                                ".",
                                "-",
                                "tru",
                                "\"\\ud83d\\ude00\"",
                                "\"\\ud800\"",
                                "e",
                                "309",
                                "E+99",
                                "99999999999999999999"};
  std::mt19937 random(20261121);
  int valid = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string text;
    const auto count = 1 + random() % 8;
    for (unsigned i = 0; i < count; ++i) text += pieces[random() % std::size(pieces)];
    const bool ours = !find_json_error(text, kDepth, stfs::Numbers::Doubles);
    if (ours) ++valid;
    if (ours != nlohmann::json::accept(text)) FAIL("they differ on: " << text);
  }
  CHECK(valid > 1000);
}
