// tools/text/json_document.h: what other programs send is read safely.
#include "tools/text/json_document.h"

#include "tests/support/catch.h"

using namespace stfs::tools;

TEST_CASE("a JSON text of another program is read to its last level, and never takes the stack",
          "[tools][json]") {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  CHECK(parse_json(nested(kMostJsonLevels)).is_array());
  CHECK(parse_json(nested(kMostJsonLevels + 1)).is_discarded());
  CHECK(parse_json(R"({"x":)" + nested(1'000'000) + "}").is_discarded());
  CHECK(parse_json(std::string(1'000'000, '[')).is_discarded());
}

TEST_CASE("a text that is not JSON, or not UTF-8, is discarded", "[tools][json]") {
  CHECK(parse_json(R"({"a": [1, "b"]})")["a"][1] == "b");
  for (const char* text : {"", "{", "{}x", "[1,]", "\"\xff\"", "1e999"}) {
    CAPTURE(text);
    CHECK(parse_json(text).is_discarded());
  }
}
