// stfs verify: the checks of an archive, and the comparison with a record of checksums.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/checksum.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tests/support/tool_run.h"

using namespace stfs;
using test::run_verb;

namespace {

std::string floats(std::initializer_list<float> values) {
  std::string bytes;
  for (const float value : values) {
    char text[sizeof(value)];
    std::memcpy(text, &value, sizeof(value));
    bytes.append(text, sizeof(value));
  }
  return bytes;
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const std::string kVerifyHeader = R"({"single":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                                  R"("bytes":{"dtype":"U8","shape":[3],"data_offsets":[16,19]},)"
                                  R"("e4m3":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[19,21]},)"
                                  R"("none":{"dtype":"F32","shape":[0],"data_offsets":[21,21]}})";
const std::string kVerifyData = floats({1, kNan, -kInfinity, kNan}) + "abc" + "\x7f\x7c";

struct VerifyModel {
  test::TemporaryDirectory directory;
  std::string path = directory.write("m.safetensors", test::archive_bytes(kVerifyHeader, kVerifyData));
  std::string sums = directory / "m.sums.json";
};

std::string sum(const std::string& bytes) {
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(bytes)));
  return "xxh128:" + checksum.hex();
}

/// The lines of a text, sorted.
std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> found;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    found.push_back(text.substr(at, text.find('\n', at) - at));
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

TEST_CASE("verify prints checksums and counts what is not finite", "[tools][verify]") {
  const VerifyModel model;
  const auto run = run_verb(tools::verify, {model.path});
  CHECK(run.code == 0);
  CHECK(run.err.empty());
  CHECK(run.out ==
        "name    dtype    checksum                                 NaN  infinite\n"
        "single  F32      " +
            sum(kVerifyData.substr(0, 16)) +
            "    2         1\n"
            "bytes   U8       " +
            sum("abc") +
            "    -         -\n"
            "e4m3    F8_E4M3  " +
            sum("\x7f\x7c") +
            "    1         -\n"
            "none    F32      " +
            sum("") + "    0         0\n");
}

TEST_CASE("verify --finite fails on what is not finite, by name", "[tools][verify]") {
  const VerifyModel model;
  const auto run = run_verb(tools::verify, {"--finite", model.path});
  CHECK(run.code == 1);
  CHECK(run.err == "stfs verify: " + model.path + ": single: not finite: 2 NaN, 1 infinite\n" +
                       "stfs verify: " + model.path + ": e4m3: not finite: 1 NaN, 0 infinite\n");
  CHECK(run_verb(tools::verify, {"--finite", model.path, "bytes", "none"}).code == 0);
}

TEST_CASE("verify reads the tensors that are named, each once", "[tools][verify]") {
  const VerifyModel model;
  CHECK(test::count_lines(run_verb(tools::verify, {model.path, "bytes", "single", "bytes"}).out) == 3);
  const auto wrong = run_verb(tools::verify, {model.path, "bytse"});
  CHECK(wrong.code == 1);
  CHECK(wrong.out.empty());
  CHECK(wrong.err == "stfs verify: " + model.path + ": bytse: no such tensor, did you mean bytes?\n");
}

TEST_CASE("verify --json has everything exactly", "[tools][verify]") {
  const VerifyModel model;
  const auto run = run_verb(tools::verify, {"--json", "--finite", model.path});
  CHECK(run.code == 1);
  const auto document = nlohmann::json::parse(run.out);
  CHECK(document["path"] == model.path);
  REQUIRE(document["tensors"].size() == 4);
  CHECK(document["tensors"][0] == nlohmann::json({{"name", "single"},
                                                  {"dtype", "F32"},
                                                  {"shape", {2, 2}},
                                                  {"size_bytes", 16},
                                                  {"checksum", sum(kVerifyData.substr(0, 16))},
                                                  {"nan", 2},
                                                  {"infinite", 1}}));
  CHECK(document["tensors"][1]["nan"].is_null());
  CHECK(document["tensors"][2]["nan"] == 1);
  CHECK(document["tensors"][2]["infinite"].is_null());
  REQUIRE(document["problems"].size() == 2);
  CHECK(document["problems"][0]["kinds"] == nlohmann::json({"nan", "infinite"}));
  CHECK(nlohmann::json::parse(run_verb(tools::verify, {"--json", model.path}).out)["problems"].empty());
}

TEST_CASE("what verify recorded is found again, and every difference is named", "[tools][verify]") {
  const VerifyModel model;
  const auto recorded = run_verb(tools::verify, {model.path, "--record", model.sums});
  CHECK(recorded.code == 0);
  CHECK(recorded.out == "read 4 tensors, 21 B: recorded in " + model.sums + "\n");
  const auto document = nlohmann::json::parse(test::content_of(model.sums));
  CHECK(document["version"] == 1);
  CHECK(document["source"] == "m.safetensors");
  CHECK(document["tensors"].size() == 4);
  CHECK(document["tensors"]["single"] ==
        nlohmann::json({{"dtype", "F32"}, {"shape", {2, 2}}, {"checksum", sum(kVerifyData.substr(0, 16))}}));
  const auto same = run_verb(tools::verify, {model.path, "--against", model.sums});
  CHECK(same.code == 0);
  CHECK(same.out == "read 4 tensors, 21 B: as recorded in " + model.sums + "\n");

  std::string header = kVerifyHeader;
  header.replace(header.find("[2,2]"), 5, "[4,1]");        // single: another shape, the same bytes
  header.replace(header.find("F8_E4M3"), 7, "F8_E5M2");    // e4m3: another dtype
  header.replace(header.find("\"none\""), 6, "\"more\"");  // none is missing, more is new
  std::string data = kVerifyData;
  data[17] = 'B';  // one byte of bytes
  const std::string other = model.directory.write("other.safetensors", test::archive_bytes(header, data));
  const auto run = run_verb(tools::verify, {other, "--against", model.sums});
  CHECK(run.code == 1);
  CHECK(run.out == "read 4 tensors, 21 B: 5 problems\n");
  const std::string start = "stfs verify: " + other + ": ";
  CHECK(lines(run.err) ==
        std::vector{start + "bytes: other checksum: found " + sum("aBc") + ", recorded " + sum("abc"),
                    start + "e4m3: other dtype: found F8_E5M2 [2], recorded F8_E4M3 [2]",
                    start + "more: is not in the record", start + "none: is in the record and missing here",
                    start + "single: other shape: found F32 [4,1], recorded F32 [2,2]"});
  const auto json =
      nlohmann::json::parse(run_verb(tools::verify, {"--json", other, "--against", model.sums}).out);
  CHECK(json["problems"].size() == 5);

  // Only the named tensors are compared.
  CHECK(run_verb(tools::verify, {other, "--against", model.sums, "single"}).code == 1);
  CHECK(run_verb(tools::verify, {other, "--against", model.sums, "bytes"}).code == 1);
  CHECK(run_verb(tools::verify, {model.path, "--against", model.sums, "bytes"}).code == 0);
}

TEST_CASE("a record is the same whatever the order of the data", "[tools][verify]") {
  const test::TemporaryDirectory directory;
  const std::string one = directory.write("m.safetensors", test::archive_of({{"a", "x"}, {"b", "y"}}));
  CHECK(run_verb(tools::verify, {one, "--record", directory / "one"}).code == 0);
  directory.write("m.safetensors", test::archive_of({{"b", "y"}, {"a", "x"}}));
  CHECK(run_verb(tools::verify, {one, "--record", directory / "two"}).code == 0);
  CHECK(test::content_of(directory / "one") == test::content_of(directory / "two"));
}

TEST_CASE("verify reads tensors larger than a piece whole, with any number of threads", "[tools][verify]") {
  const test::TemporaryDirectory directory;
  constexpr std::size_t kTensors = 40;
  std::string header = "{";
  std::string data;
  std::vector<std::string> sums;
  for (std::size_t at = 0; at < kTensors; ++at) {
    std::string tensor(at * 26'214 / 2 * 2, '\0');  // up to 1 MiB
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<char>(i * 31 + i / 4093 + at);
    for (std::size_t i = 1; i < tensor.size(); i += 2) tensor[i] &= 0x3f;  // finite halves
    if (at == kTensors - 1) {
      tensor[tensor.size() - 1] = 0x7c;  // the last of the largest is infinity
      tensor[tensor.size() - 2] = 0;
    }
    sums.push_back(sum(tensor));
    header += (at == 0 ? "" : ",") + ("\"t" + std::to_string(at)) + R"(":{"dtype":"F16","shape":[)" +
              std::to_string(tensor.size() / 2) + R"(],"data_offsets":[)" + std::to_string(data.size()) +
              "," + std::to_string(data.size() + tensor.size()) + "]}";
    data += tensor;
  }
  const std::string path = directory.write("m.safetensors", test::archive_bytes(header + "}", data));
  for (const char* threads : {"1", "2", "7", "64"}) {
    const auto document =
        nlohmann::json::parse(run_verb(tools::verify, {"--json", "--threads", threads, path}).out);
    REQUIRE(document["tensors"].size() == kTensors);
    for (const auto& tensor : document["tensors"]) {
      const std::size_t at = std::stoul(tensor["name"].get<std::string>().substr(1));
      CHECK(tensor["checksum"] == sums[at]);
      CHECK(tensor["nan"] == 0);
      CHECK(tensor["infinite"] == (at == kTensors - 1 ? 1 : 0));
    }
  }
  CHECK(run_verb(tools::verify, {"--threads", "0", path}).code == 2);
}

TEST_CASE("verify names what an index and its shards disagree on, and records no such model",
          "[tools][verify]") {
  const test::TemporaryDirectory directory;
  directory.write("1.safetensors", test::archive_of({{"a", "ab"}}));
  directory.write("2.safetensors", test::archive_of({{"b", "cd"}, {"d", ""}}));
  const auto write_index = [&](const std::string& weights) {
    return directory.write("m.safetensors.index.json", R"({"weight_map":{)" + weights + "}}");
  };
  const std::string index = write_index(R"("a":"1.safetensors","b":"2.safetensors","d":"2.safetensors")");
  CHECK(run_verb(tools::verify, {index, "--record", directory / "sums"}).code == 0);
  CHECK(run_verb(tools::verify, {directory.path().string(), "--against", directory / "sums"}).code == 0);

  write_index(R"("a":"1.safetensors","b":"2.safetensors","c":"3.safetensors","d":"2.safetensors")");
  const auto run = run_verb(tools::verify, {index});
  CHECK(run.code == 1);
  CHECK(run.out.find(sum("cd")) != std::string::npos);
  CHECK(run.err.find("3.safetensors") != std::string::npos);
  CHECK_FALSE(nlohmann::json::parse(run_verb(tools::verify, {"--json", index}).out)["problems"].empty());

  const auto unrecorded = run_verb(tools::verify, {index, "--record", directory / "none"});
  CHECK(unrecorded.code == 1);
  CHECK(unrecorded.out.empty());
  CHECK(unrecorded.err.find("none: not written: a record needs a model without problems\n") !=
        std::string::npos);
  CHECK_FALSE(std::filesystem::exists(directory / "none"));

  std::filesystem::remove(directory / "2.safetensors");
  const auto gone = run_verb(tools::verify, {index, "--against", directory / "sums"});
  CHECK(gone.code == 1);
  for (const char* name : {"b", "d"})
    CHECK(gone.err.find(std::string(": ") + name + ": is in the record and missing here\n") !=
          std::string::npos);
}

TEST_CASE("verify never records over a file of the model, and keeps the old record where it fails",
          "[tools][verify]") {
  const VerifyModel model;
  const auto own = run_verb(tools::verify, {model.path, "--record", model.path});
  CHECK(own.code == 1);
  CHECK(test::content_of(model.path) == test::archive_bytes(kVerifyHeader, kVerifyData));
  std::ofstream(model.sums) << "old";
  CHECK(run_verb(tools::verify, {model.path, "--record", model.sums}).code == 1);
  CHECK(run_verb(tools::verify, {model.path, "--finite", "--force", "--record", model.sums}).code == 1);
  CHECK(test::content_of(model.sums) == "old");
  CHECK(run_verb(tools::verify, {model.path, "--record", model.directory / "none/x"}).code == 1);
}

TEST_CASE("verify takes no record and a comparison at once", "[tools][verify]") {
  const VerifyModel model;
  CHECK(run_verb(tools::verify, {model.path, "--record", "a", "--against", "b"}).code == 2);
  CHECK(run_verb(tools::verify, {model.path, "--force"}).code == 2);
}

TEST_CASE("verify says why a record can't be read before it reads the model", "[tools][verify]") {
  const VerifyModel model;
  const auto run = run_verb(tools::verify, {model.path, "--against", model.directory.write("bad", "[")});
  CHECK(run.code == 1);
  CHECK(run.out.empty());
  CHECK(run.err.find("stfs verify: " + (model.directory / "bad") + ": not a record of stfs verify: byte ") ==
        0);
}
