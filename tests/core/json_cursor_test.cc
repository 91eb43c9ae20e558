// core/format/json_cursor.h: the cursor reads every kind of value to its end, and no further.
#include "core/format/json_cursor.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

struct Member {
  std::string key;
  std::size_t key_at = 0;
  std::string value;

  friend bool operator==(const Member&, const Member&) = default;
};

std::vector<Member> members(std::string_view json) {
  JsonCursor cursor(json);
  std::vector<Member> found;
  CHECK(cursor.for_each_member([&](std::string_view key, std::size_t key_at) -> Result<void> {
    found.push_back({std::string(key), key_at, {}});
    found.back().value = cursor.take_value();
    return {};
  }));
  CHECK(cursor.position() == json.find_last_of('}') + 1);
  return found;
}

}  // namespace

TEST_CASE("members come with their positions and their whole values", "[core][json_cursor]") {
  CHECK(members("{}").empty());
  CHECK(members(" {\n} ").empty());
  CHECK(members(R"({"a":1,"b":[1,{"c":"]}"}],"d":{"e":{}},"f":"x\"y\\","g":null})") ==
        std::vector<Member>{{"a", 1, "1"},
                            {"b", 7, R"([1,{"c":"]}"}])"},
                            {"d", 26, R"({"e":{}})"},
                            {"f", 39, R"("x\"y\\")"},
                            {"g", 52, "null"}});
  CHECK(members("{ \"a\" :\t-1.5e3 , \"\\u00e4\\n\" : [ ] }") ==
        std::vector<Member>{{"a", 2, "-1.5e3"}, {"\u00e4\n", 17, "[ ]"}});
}

TEST_CASE("elements come one by one, and a callback's error ends the walk", "[core][json_cursor]") {
  std::vector<std::optional<std::uint64_t>> numbers;
  JsonCursor cursor(R"( [ 0 , 18446744073709551615,18446744073709551616, -1, 1.0, 1e2, "7", [8], true ] )");
  CHECK(cursor.for_each_element([&]() -> Result<void> {
    numbers.push_back(cursor.take_whole_number());
    return {};
  }));
  CHECK(numbers == std::vector<std::optional<std::uint64_t>>{0, 18446744073709551615U, std::nullopt,
                                                             std::nullopt, std::nullopt, std::nullopt,
                                                             std::nullopt, std::nullopt, std::nullopt});
  int calls = 0;
  JsonCursor other("[1,2,3]");
  const auto stopped = other.for_each_element([&]() -> Result<void> {
    ++calls;
    return fail(ErrorCode::InvalidArgument, EINVAL, "no");
  });
  CHECK_FALSE(stopped);
  CHECK(calls == 1);
}

TEST_CASE("a string is decoded where it has escapes", "[core][json_cursor]") {
  std::string decoded;
  CHECK(JsonCursor(R"("plain")").take_string(decoded) == "plain");
  CHECK(decoded.empty());
  CHECK(JsonCursor(R"("a\u0000\\\"")").take_string(decoded) == std::string_view("a\0\\\"", 4));
}

TEST_CASE("a text that is no JSON is read to its end at most, and every walk ends", "[core][json_cursor]") {
  // The test reads each prefix of these texts.
  const std::string whole[] = {R"({"metadata":{"\"a":"\\","b":[1,{"c":-1e5}]},"d":null})",
                               R"([{"a":"b"},["\ud83d\ude00","\u12"],"\n\)",
                               "{\"a\":]",
                               "{]:}[\"",
                               "}",
                               "]]",
                               "\"\"\"",
                               "{5\"6:7,,,\x01",
                               ""};
  for (const std::string& text : whole) {
    for (std::size_t length = 0; length <= text.size(); ++length) {
      // An allocation of exactly this size, so that ASan sees a read behind the end.
      const std::vector<char> bytes(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
      const std::string_view part(bytes.data(), bytes.size());
      CAPTURE(part);
      std::string decoded;
      JsonCursor taken(part);
      taken.take_string(decoded);
      CHECK(taken.position() <= length);
      JsonCursor values(part);
      CHECK(values.take_value().size() <= length);
      CHECK_FALSE((length == 0 && values.take_whole_number()));
      std::size_t calls = 0;
      JsonCursor object(part);
      CHECK(object.for_each_member([&](std::string_view, std::size_t) -> Result<void> {
        ++calls;
        return object.for_each_member([&](std::string_view, std::size_t) -> Result<void> {
          object.take_value();
          return {};
        });
      }));
      JsonCursor array(part);
      CHECK(array.for_each_element([&]() -> Result<void> {
        ++calls;
        array.take_string(decoded);
        return {};
      }));
      CHECK(object.position() <= length);
      CHECK(array.position() <= length);
      CHECK(calls <= 2 * length);
    }
  }
}
