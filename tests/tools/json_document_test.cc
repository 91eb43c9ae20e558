// tools/text/json_document.h reads documents of other programs safely.
#include "tools/text/json_document.h"

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::tools;

TEST_CASE("a JSON text of another program is read to its last level, and never takes the stack",
          "[tools][json]") {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  CHECK(parse_json(nested(kMostJsonLevels)).is_array());
  CHECK(parse_json(nested(kMostJsonLevels + 1)).is_discarded());
  CHECK(parse_json(R"({"x":)" + nested(1'000'000) + "}").is_discarded());
  CHECK(parse_json(std::string(1'000'000, '[')).is_discarded());
}

TEST_CASE("printed JSON has escapes where a terminal would act on a character", "[tools][json]") {
  const std::string name = "a\u009b2J\u202eb\x7f\U000e0041 重み";
  std::ostringstream out;
  write_json(Json{{"name", name}}, out);
  for (const std::string& text : {out.str(), json_line(Json{{"name", name}})}) {
    CHECK(text.find(R"("a\u009b2J\u202eb\u007f\udb40\udc41 重み")") != std::string::npos);
    CHECK(parse_json(text)["name"] == name);
  }
}

TEST_CASE("a text that is not JSON, or not UTF-8, is discarded", "[tools][json]") {
  CHECK(parse_json(R"({"a": [1, "b"]})")["a"][1] == "b");
  for (const char* text : {"", "{", "{}x", "[1,]", "\"\xff\"", "1e999"}) {
    CAPTURE(text);
    CHECK(parse_json(text).is_discarded());
  }
}

TEST_CASE("a shape is a list up to 65,536 dimensions, and null above", "[tools][json]") {
  const std::vector<std::uint64_t> ones(kMostJsonDimensions + 1, 1);
  Tensor tensor{.name = "t", .dtype = Dtype::U8, .shape = ones, .data = {0, 1}};
  CHECK(json_of(tensor)["shape"].is_null());
  tensor.shape = std::span(ones).subspan(1);
  CHECK(json_of(tensor)["shape"].size() == kMostJsonDimensions);
}
