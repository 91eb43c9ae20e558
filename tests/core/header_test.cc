// Reads headers (core/format/header.h): one test for each of the ten checks, and one for each surprising
// thing that the reference library accepts. tests/reference compares the same rules with the reference
// library.
#include "core/format/header.h"

#include <array>
#include <string>

#include "support/catch.h"
#include "support/header_text.h"

using namespace stfs;
using stfs::test::entry;

namespace {

std::array<std::byte, 8> length_bytes(std::uint64_t length) {
  std::array<std::byte, 8> bytes{};
  for (unsigned i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(length >> (8 * i));
  return bytes;
}

ErrorCode code_of_length(std::uint64_t length, std::uint64_t file_size_bytes) {
  const auto bytes = length_bytes(length);
  const auto result = header_length(bytes, file_size_bytes);
  REQUIRE(!result);
  CHECK(result.error().errno_value == EINVAL);
  return result.error().code;
}

Error error_of(std::string_view json, std::uint64_t data_size_bytes = 1) {
  const auto header = parse_header(json, data_size_bytes);
  INFO("header: " << json.substr(0, 200));
  REQUIRE(!header);
  CHECK(header.error().errno_value == EINVAL);
  return header.error();
}

ErrorCode code_of(std::string_view json, std::uint64_t data_size_bytes = 1) {
  return error_of(json, data_size_bytes).code;
}

Header accepted(std::string_view json, std::uint64_t data_size_bytes = 1) {
  auto header = parse_header(json, data_size_bytes);
  INFO("header: " << json.substr(0, 200));
  if (!header) FAIL(header.error().message);
  return std::move(*header);
}

std::string tensor_a(std::string_view value) {
  return "{\"a\":" + std::string(value) + "}";
}

const std::string kA = tensor_a(entry("U8", "1", 0, 1));

}  // namespace

TEST_CASE("header 1: a file shorter than eight bytes is HeaderTooSmall", "[core][header]") {
  const auto bytes = length_bytes(2);
  for (std::size_t size = 0; size < 8; ++size) {
    const auto result = header_length(std::span(bytes).first(size), size);
    REQUIRE(!result);
    CHECK(result.error().code == ErrorCode::HeaderTooSmall);
  }
}

TEST_CASE("header 2: a length over 100,000,000 is HeaderTooLarge", "[core][header]") {
  CHECK(header_length(length_bytes(100'000'000), 100'000'008) == 100'000'000U);
  CHECK(code_of_length(100'000'001, 1ULL << 40) == ErrorCode::HeaderTooLarge);
  CHECK(code_of_length(1ULL << 63, 1ULL << 40) == ErrorCode::HeaderTooLarge);
  CHECK(code_of_length(~0ULL, 100) == ErrorCode::HeaderTooLarge);
}

TEST_CASE("header 3: a header longer than the file is InvalidHeaderLength", "[core][header]") {
  CHECK(header_length(length_bytes(2), 10) == 2U);
  CHECK(code_of_length(2, 9) == ErrorCode::InvalidHeaderLength);
  CHECK(code_of_length(1, 8) == ErrorCode::InvalidHeaderLength);
  CHECK(code_of_length(100'000'000, 100'000'007) == ErrorCode::InvalidHeaderLength);
}

TEST_CASE("header 4: bytes that are not UTF-8 are InvalidHeader, before any other fault", "[core][header]") {
  const std::string name_ff = "{\"\xff\":" + entry("U8", "1", 0, 1) + "}";
  CHECK(code_of(name_ff) == ErrorCode::InvalidHeader);
  CHECK(error_of(name_ff).message == "byte 2: not UTF-8");
  CHECK(code_of("{,} \xc3", 0) == ErrorCode::InvalidHeader);
  CHECK(code_of("{\"\xed\xa0\x80\":1}") == ErrorCode::InvalidHeader);
}

TEST_CASE("header 5: what is not JSON is InvalidHeaderDeserialization", "[core][header]") {
  using namespace std::string_literals;
  for (const std::string& json : {""s, " "s, "{"s, "{}}"s, "{} {}"s, "{,}"s, "\xEF\xBB\xBF{}"s, "{}//"s,
                                  "{/**/}"s, "{}\0"s, "\0{}"s, "{\0}"s, "{\"a\n\":1}"s, "{\"\\ud800\":1}"s,
                                  "{\"\\udc00\":1}"s, "{\"\\x\":1}"s, "{\"a\":1,}"s, "{'a':1}"s, "nul"s}) {
    CAPTURE(json);
    CHECK(code_of(json, 0) == ErrorCode::InvalidHeaderDeserialization);
  }
}

TEST_CASE("header 5: a message tells the place, what was found and what was expected", "[core][header]") {
  CHECK(error_of(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})").message ==
        "tensor \"a\": shape: found a number with a minus sign at byte 28, expected an array of whole "
        "numbers from 0 "
        "to 2^64-1");
  CHECK(error_of(R"({"a":{"dtype":"u8"}})").message ==
        "tensor \"a\": dtype: found \"u8\" at byte 14, expected the name of a dtype");
  CHECK(error_of(R"({"a":{"data_offsets":[0,1,2]}})").message ==
        "tensor \"a\": data_offsets: found a third number at byte 26, expected two whole numbers from 0 to "
        "2^64-1");
  CHECK(error_of(R"({"a":{"dtype":"U8","dtype":"U8"}})").message ==
        "tensor \"a\": byte 19: dtype is given twice");
  CHECK(error_of("\xEF\xBB\xBF{}", 0).message == "byte 0: not JSON: a byte order mark before the JSON");
}

TEST_CASE("header 5: a header of another shape is InvalidHeaderDeserialization", "[core][header]") {
  for (const char* json : {"[]",
                           "null",
                           "1",
                           "\"a\"",
                           "true",
                           "{\"a\":null}",
                           "{\"a\":[]}",
                           "{\"a\":{}}",
                           "{\"a\":1}",
                           "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}",
                           "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}",
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}",
                           "{\"a\":{\"dtype\":\"u8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}",
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}",
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}",
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[]}}",
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}",
                           "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}",
                           "{\"__metadata__\":{},\"__metadata__\":{}}",
                           "{\"__metadata__\":null,\"__metadata__\":null}",
                           "{\"__metadata__\":1}",
                           "{\"__metadata__\":{\"k\":1}}",
                           "{\"__metadata__\":{\"k\":null}}",
                           "{\"__metadata__\":{\"k\":{}}}"}) {
    CAPTURE(json);
    CHECK(code_of(json) == ErrorCode::InvalidHeaderDeserialization);
  }
}

TEST_CASE("header 5: sizes and offsets are whole numbers without a sign", "[core][header]") {
  for (const std::string number : {"1.0", "1e0", "-1", "-0", "18446744073709551616", "\"1\"", "null", "true",
                                   "[1]", "{}", "1e999", "01", "+1", "0x1"}) {
    CAPTURE(number);
    const auto with = [&](std::string_view shape, std::string_view offsets) {
      return tensor_a("{\"dtype\":\"U8\",\"shape\":[" + std::string(shape) + "],\"data_offsets\":[" +
                      std::string(offsets) + "]}");
    };
    CHECK(code_of(with(number, "0,1")) == ErrorCode::InvalidHeaderDeserialization);
    CHECK(code_of(with("1", number + ",1")) == ErrorCode::InvalidHeaderDeserialization);
    CHECK(code_of(with("1", "0," + number)) == ErrorCode::InvalidHeaderDeserialization);
  }
}

TEST_CASE("header 6: a hole, an overlap or a range that ends before it begins is InvalidOffset",
          "[core][header]") {
  CHECK(code_of(tensor_a(entry("U8", "1", 1, 2)), 2) == ErrorCode::InvalidOffset);
  CHECK(code_of("{\"a\":" + entry("U8", "1", 0, 1) + ",\"b\":" + entry("U8", "1", 2, 3) + "}", 3) ==
        ErrorCode::InvalidOffset);
  CHECK(code_of("{\"a\":" + entry("U8", "2", 0, 2) + ",\"b\":" + entry("U8", "2", 1, 3) + "}", 3) ==
        ErrorCode::InvalidOffset);
  CHECK(code_of("{\"a\":" + entry("U8", "2", 0, 2) + ",\"b\":" + entry("U8", "0", 2, 1) + "}", 2) ==
        ErrorCode::InvalidOffset);
  // An empty tensor must sit at the running offset too.
  CHECK(code_of("{\"a\":" + entry("U8", "4", 0, 4) + ",\"b\":" + entry("U8", "0", 2, 2) + "}", 4) ==
        ErrorCode::InvalidOffset);
  CHECK(code_of(tensor_a(entry("U8", "1", ~0ULL, 0))) == ErrorCode::InvalidOffset);
}

TEST_CASE("header 7: a product that passes 64 bits is ValidationOverflow", "[core][header]") {
  CHECK(code_of(tensor_a(entry("U8", "9223372036854775808,2", 0, 0)), 0) == ErrorCode::ValidationOverflow);
  CHECK(code_of(tensor_a(entry("U8", "9223372036854775808,2,0", 0, 0)), 0) == ErrorCode::ValidationOverflow);
  CHECK(code_of(tensor_a(entry("F64", "288230376151711744", 0, 0)), 0) == ErrorCode::ValidationOverflow);
  // Sizes are multiplied from left to right: behind a zero nothing overflows any more.
  CHECK(accepted(tensor_a(entry("U8", "0,9223372036854775808,2", 0, 0)), 0).tensors.size() == 1);
}

TEST_CASE("header 8: bits that are no whole bytes are MisalignedSlice", "[core][header]") {
  CHECK(code_of(tensor_a(entry("F4", "3", 0, 1))) == ErrorCode::MisalignedSlice);
  CHECK(code_of(tensor_a(entry("F6_E3M2", "2", 0, 1))) == ErrorCode::MisalignedSlice);
  CHECK(accepted(tensor_a(entry("F6_E3M2", "4", 0, 3)), 3).tensors[0].data.size_bytes == 3);
}

TEST_CASE("header 9: a range of another size than the shape's is TensorInvalidInfo", "[core][header]") {
  CHECK(code_of(tensor_a(entry("F32", "3", 0, 8)), 8) == ErrorCode::TensorInvalidInfo);
  CHECK(code_of(tensor_a(entry("U8", "", 0, 0)), 0) == ErrorCode::TensorInvalidInfo);
  CHECK(error_of(tensor_a(entry("F32", "3", 0, 8)), 8).message ==
        "tensor \"a\": data_offsets [0,8] hold 8 bytes, but F32 [3] needs 12");
}

TEST_CASE("header 10: data that are missing or left over are MetadataIncompleteBuffer", "[core][header]") {
  CHECK(code_of(kA, 0) == ErrorCode::MetadataIncompleteBuffer);
  CHECK(code_of(kA, 2) == ErrorCode::MetadataIncompleteBuffer);
  CHECK(code_of("{}", 1) == ErrorCode::MetadataIncompleteBuffer);
  CHECK(error_of(kA, 4).message == "the tensors need 1 bytes of data, but the file holds 4 (3 left over)");
}

TEST_CASE("the checks come in the reference's order, tensor by tensor", "[core][header]") {
  // The check of the first tensor's size (9) comes before the check of the second tensor's offset (6). The
  // check of the end of the data comes last.
  const std::string sizes = "{\"b\":" + entry("U8", "1", 9, 10) + ",\"a\":" + entry("F32", "3", 0, 8) + "}";
  CHECK(code_of(sizes, 99) == ErrorCode::TensorInvalidInfo);
  CHECK(code_of(tensor_a(entry("F4", "9223372036854775808,3", 1, 2)), 2) == ErrorCode::InvalidOffset);
  CHECK(code_of(tensor_a(entry("F4", "3", 0, 9)), 9) == ErrorCode::MisalignedSlice);
}

TEST_CASE("header accepts white space around and inside the JSON", "[core][header]") {
  CHECK(accepted(" \t\r\n{ \"a\" :\t" + entry("U8", "1", 0, 1) + "\n}" + std::string(70'000, ' '))
            .tensors.size() == 1);
  CHECK(accepted("{" + std::string(3 << 20, '\n') + kA.substr(1)).tensors.size() == 1);
}

TEST_CASE("header accepts fields in any order and ignores those it doesn't know", "[core][header]") {
  const Header header = accepted(tensor_a(
      R"({"x":[{"dtype":1},[-0]],"data_offsets":[0,1],"y":{"shape":null},"shape":[1],"dtype":"U8","x":1.5e3})"));
  CHECK(header.tensors[0].data == ByteRange{0, 1});
  CHECK(shape_text(header.tensors[0].shape) == "[1]");
}

TEST_CASE("header accepts no tensors, and metadata null, empty, alone or last", "[core][header]") {
  CHECK(accepted("{}", 0).tensors.size() == 0);
  CHECK(accepted("{\"__metadata__\":null}", 0).metadata.empty());
  CHECK(accepted("{\"__metadata__\":{}}", 0).metadata.empty());
  const Header last = accepted(kA.substr(0, kA.size() - 1) + R"(,"__metadata__":{"k":"v","":"\n"}})");
  CHECK(last.metadata == Metadata{{"k", "v"}, {"", "\n"}});
  CHECK(last.tensors.size() == 1);
}

TEST_CASE("header accepts any rank and any alignment", "[core][header]") {
  std::string ones = "1";
  for (int i = 1; i < 5000; ++i) ones += ",1";
  CHECK(accepted(tensor_a(entry("U8", ones, 0, 1))).tensors[0].shape.size() == 5000);
  const std::string unaligned =
      "{\"a\":" + entry("U8", "1", 0, 1) + ",\"b\":" + entry("F64", "1", 1, 9) + "}";
  CHECK(accepted(unaligned, 9).tensors[1].data == ByteRange{1, 8});
}

TEST_CASE("header refuses a tensor's name given twice, with both places", "[core][header]") {
  const std::string twice =
      "{\"a\":" + entry("U8", "1", 0, 1) + ", \"\\u0061\":" + entry("I8", "1", 0, 1) + "}";
  CHECK(error_of(twice).code == ErrorCode::DuplicateKey);
  CHECK(error_of(twice).message == "tensor \"a\" is given twice, at bytes 1 and 54 of the header");
  CHECK(twice[54] == '"');
  // The name contains quotes and backslashes. The place of its opening quote is right.
  const std::string odd =
      R"({"x\"\\":)" + entry("U8", "1", 0, 1) + R"(,"x\"\\":)" + entry("U8", "1", 0, 1) + "}";
  CHECK(error_of(odd).message == "tensor \"x\\\"\\\\\" is given twice, at bytes 1 and 57 of the header");
  CHECK(odd.substr(57, 3) == "\"x\\");
}

TEST_CASE("of a metadata key given several times the last value counts, as in the reference",
          "[core][header]") {
  const auto header =
      parse_header(R"({"__metadata__":{"b":"1","k":"1","a":"x","k":"2","\u006b":"3","b":"4"}})", 0);
  REQUIRE(header);
  CHECK(header->metadata == Metadata{{"a", "x"}, {"k", "3"}, {"b", "4"}});
}

TEST_CASE("header refuses the array form of an entry and the map form of a dtype", "[core][header]") {
  CHECK(code_of(R"({"a":["U8",[1],[0,1]]})") == ErrorCode::InvalidHeaderDeserialization);
  CHECK(code_of(R"({"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}})") ==
        ErrorCode::InvalidHeaderDeserialization);
}

TEST_CASE("header accepts every name that JSON can spell", "[core][header]") {
  const Header header = accepted("{\"\":" + entry("U8", "0", 0, 0) + ",\"..\":" + entry("U8", "0", 0, 0) +
                                     R"(,"a\/b\u0000\n\ud83d\ude00":)" + entry("U8", "0", 0, 0) + ",\"" +
                                     std::string(300, 'n') + "\":" + entry("U8", "0", 0, 0) + "}",
                                 0);
  for (const std::string& name :
       {std::string(), std::string(".."), std::string("a/b\0\n😀", 9), std::string(300, 'n')}) {
    CAPTURE(name);
    CHECK(header.tensors.find(name));
  }
}

TEST_CASE("header is read to 127 levels, and deeper never takes the stack", "[core][header]") {
  const auto nested = [](std::size_t levels) {
    return tensor_a("{\"x\":" + std::string(levels - 2, '[') + std::string(levels - 2, ']') +
                    ",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}");
  };
  CHECK(accepted(nested(127)).tensors.size() == 1);
  CHECK(code_of(nested(128)) == ErrorCode::InvalidHeaderDeserialization);
  CHECK(code_of(nested(1'000'000)) == ErrorCode::InvalidHeaderDeserialization);
  CHECK(code_of(std::string(1'000'000, '[')) == ErrorCode::InvalidHeaderDeserialization);
}

TEST_CASE("messages show odd names so that they break no terminal", "[core][header]") {
  const std::string message = error_of(R"({"\u001b[2J\n":null})").message;
  CHECK(message.find("tensor \"\\u001b[2J\\n\"") == 0);
  const std::string rank =
      error_of(tensor_a(entry("U8", "1" + std::string(20'000, ' ') + ",2", 0, 1))).message;
  CHECK(rank.size() < 200);
}
