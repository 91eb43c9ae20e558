// tools/cli/sums_file.h reads the records that it writes, and refuses files that are no records.
#include "tools/cli/sums_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tools/text/json_document.h"

using namespace stfs;
using tools::read_sums;

namespace {

const std::string kDigits = "xxh128:0123456789abcdef0123456789abcdef";

std::string tensor(const std::string& name, const std::string& checksum = kDigits) {
  return '"' + name + R"(":{"dtype":"U8","shape":[1,2],"checksum":")" + checksum + "\"}";
}

struct Record {
  test::TemporaryDirectory directory;

  /// The reason why the text is no record, without the path; "" for a record.
  [[nodiscard]] std::string fault(const std::string& text) const {
    const std::string path = directory.write("sums", text);
    const auto sums = read_sums(path);
    if (sums) return "";
    const std::string start = path + ": not a record of stfs verify: ";
    CHECK(sums.error().message.find(start) == 0);
    return sums.error().message.substr(std::min(start.size(), sums.error().message.size()));
  }
};

}  // namespace

TEST_CASE("a file of checksums is read as it was written, whatever the names", "[tools][sums_file]") {
  const test::TemporaryDirectory directory;
  const tools::Sums written = {
      {"", Dtype::F32, {}, kDigits},
      {"a \"quoted\\\" line\n\x1b", Dtype::F8_E4M3FNUZ, {0, 18446744073709551615U}, kDigits},
      {std::string("n\0l", 3), Dtype::BOOL, {3}, kDigits},
      {"\xe9\x87\x8d\xe3\x81\xbf", Dtype::F4, {1, 2, 3}, kDigits}};
  auto file = NewFile::create(directory / "sums", false);
  REQUIRE(file);
  REQUIRE(tools::append_sums(*file, "model\xff", written));
  REQUIRE(file->finish());
  const auto sums = read_sums(directory / "sums");
  REQUIRE(sums);
  REQUIRE(sums->size() == written.size());
  for (std::size_t at = 0; at < written.size(); ++at) {
    CHECK((*sums)[at].name == written[at].name);
    CHECK((*sums)[at].dtype == written[at].dtype);
    CHECK((*sums)[at].shape == written[at].shape);
    CHECK((*sums)[at].checksum == written[at].checksum);
  }
}

TEST_CASE("a record of nothing is one", "[tools][sums_file]") {
  const test::TemporaryDirectory directory;
  auto file = NewFile::create(directory / "sums", false);
  REQUIRE(file);
  REQUIRE(tools::append_sums(*file, "m", {}));
  REQUIRE(file->finish());
  REQUIRE(read_sums(directory / "sums"));
  CHECK(read_sums(directory / "sums")->empty());
}

TEST_CASE("what later versions add is skipped, and tensors are sorted", "[tools][sums_file]") {
  const test::TemporaryDirectory directory;
  const auto sums = read_sums(directory.write(
      "sums", R"( { "more" : [ {"x": "]"} , 1 ] , "tensors" : { )" + tensor("b") + " , " +
                  R"("a": {"new": {"deep": [1, 2]}, "shape": [ ], "dtype": "F64", "checksum": ")" + kDigits +
                  R"("} } , "source": null, "version" : 1 } )"));
  REQUIRE(sums);
  REQUIRE(sums->size() == 2);
  CHECK((*sums)[0].name == "a");
  CHECK((*sums)[0].shape.empty());
  CHECK((*sums)[1].shape == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("a file that is no record says where and why", "[tools][sums_file]") {
  const Record record;
  const auto with = [](const std::string& tensors) { return R"({"version":1,"tensors":)" + tensors + "}"; };
  CHECK(record.fault("").find("byte 0: not JSON: ") == 0);
  CHECK(record.fault("\xff").find("byte 0: not UTF-8") == 0);
  CHECK(record.fault(std::string(1 << 20, '[')) == "byte 16: not JSON: nested too deeply");
  CHECK(record.fault(std::string(1 << 20, '{')).find("byte 1: not JSON: ") == 0);
  CHECK(record.fault("[]") == "byte 0: it is not a JSON object");
  CHECK(record.fault("{}") == "byte 0: it has no version and tensors");
  CHECK(record.fault(R"({"version":1})") == "byte 0: it has no version and tensors");
  CHECK(record.fault(R"({"tensors":{}})") == "byte 0: it has no version and tensors");
  for (const char* version :
       {"2", "0", "-1", "1.0", "\"1\"", "null", "[1]", "{}", "1e0", "99999999999999999999"}) {
    CAPTURE(version);
    CHECK(record.fault(R"({"version":)" + std::string(version) + R"(,"tensors":{}})") ==
          "byte 11: another version than 1");
  }
  CHECK(record.fault(R"({"version":1,"version":1,"tensors":{}})") == "byte 13: version is given twice");
  CHECK(record.fault(R"({"version":1,"tensors":{},"tensors":{}})") == "byte 26: tensors is given twice");
  CHECK(record.fault(with("[]")) == "byte 23: tensors is not an object");
  CHECK(record.fault(with(R"({"a":1})")) == "byte 28: tensor \"a\": is not an object");
  CHECK(record.fault(with(R"({"a":{}})")) == "byte 24: tensor \"a\": expected dtype, shape and checksum");
  CHECK(record.fault(with("{" + tensor("a") + "," + tensor("a") + "}")) ==
        "byte 0: tensor \"a\" is given twice");
  CHECK(record.fault(with(R"({"a":{"dtype":"u8"}})")) ==
        "byte 37: tensor \"a\": dtype is not a dtype of the format");
  CHECK(record.fault(with(R"({"a":{"dtype":8}})")) ==
        "byte 37: tensor \"a\": dtype is not a dtype of the format");
  CHECK(record.fault(with(R"({"a":{"shape":8}})")) == "byte 37: tensor \"a\": shape is not an array");
  std::string ones = "1";
  for (std::size_t at = 0; at < tools::kMostJsonDimensions; ++at) ones += ",1";
  CHECK(record.fault(with(R"({"a":{"shape":[)" + ones + "]}}")).find("has too many dimensions") !=
        std::string::npos);
  for (const char* dimension : {"-1", "1.5", "\"1\"", "[]", "18446744073709551616", "null"}) {
    CAPTURE(dimension);
    CHECK(record.fault(with(R"({"a":{"shape":[)" + std::string(dimension) + "]}}")) ==
          "byte 38: tensor \"a\": a dimension is not a whole number");
  }
  for (const std::string& checksum :
       {std::string(), std::string("xxh128:"), kDigits + "0", "md5:" + kDigits.substr(7),
        kDigits.substr(0, 38) + "g", kDigits.substr(0, 38) + "F"}) {
    CAPTURE(checksum);
    CHECK(record.fault(with("{" + tensor("a", checksum) + "}")).find("checksum is not xxh128: and 32") !=
          std::string::npos);
  }
}

TEST_CASE("a record that is too large, missing or no file is refused unread", "[tools][sums_file]") {
  const test::TemporaryDirectory directory;
  const std::string large = directory.write("large", "");
  REQUIRE(::truncate(large.c_str(), 1L << 40) == 0);
  const auto refused = read_sums(large);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message == large + ": 1099511627776 bytes, a record has at most 536870912");
  CHECK_FALSE(read_sums(directory / "none"));
  CHECK_FALSE(read_sums(directory.path().string()));
  const std::string fifo = directory / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK_FALSE(read_sums(fifo));
}
