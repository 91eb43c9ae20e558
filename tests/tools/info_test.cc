// stfs info: the totals agree with the archive, in text and in JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_run.h"

using namespace stfs;
using test::contains;
using test::run_verb;

namespace {

// 272 bytes of header, white space at its end included, so that the data start at 280 = 8 * 35.
std::string header() {
  std::string json = R"({"__metadata__":{"format":"pt","note":"a\nb\u001b[0m"},)"
                     R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                     R"("b":{"dtype":"F32","shape":[10],"data_offsets":[16,56]},)"
                     R"("c":{"dtype":"F4","shape":[4,4],"data_offsets":[56,64]}})";
  json.resize(272, ' ');
  return json;
}

struct InfoModel {
  test::TemporaryDirectory directory;
  std::string path = directory.write("m.safetensors", test::archive_bytes(header(), std::string(64, '\0')));
};

}  // namespace

TEST_CASE("info counts tensors, parameters and bytes by dtype, largest first", "[tools][info]") {
  const InfoModel model;
  const auto run = run_verb(tools::info, {model.path});
  CHECK(run.code == 0);
  CHECK(contains(run.out, "tensors     3\n"));
  CHECK(contains(run.out, "parameters  30\n"));
  CHECK(contains(run.out,
                 "dtype  tensors  parameters  size   share\n"
                 "F32          2          14  56 B  87.5 %\n"
                 "F4           1          16   8 B  12.5 %\n"));
}

TEST_CASE("info tells the header's padding and the alignment of the data", "[tools][info]") {
  const InfoModel model;
  const auto run = run_verb(tools::info, {model.path});
  const std::size_t padding = 272 - (header().find_last_not_of(' ') + 1);
  CHECK(contains(run.out, "header      272 bytes, " + std::to_string(padding) + " of them padding\n"));
  CHECK(contains(run.out, "data        64 bytes from offset 280\n"));
  // 280, 296 and 336: all at multiples of 8, none of 64.
  CHECK(contains(run.out, "alignment   of 3 tensors: 3 at multiples of 8, 0 of 64, 0 of 4096\n"));
}

TEST_CASE("info shows metadata in order and escaped", "[tools][info]") {
  const InfoModel model;
  const auto run = run_verb(tools::info, {model.path});
  CHECK(contains(run.out, "metadata    2 entries\n  format  pt\n  note    a\\nb\\x1b[0m\n"));
}

TEST_CASE("info cuts a metadata value of many bytes and says so", "[tools][info]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write(
      "m.safetensors",
      test::archive_bytes(R"({"__metadata__":{"k":")" + std::string(5000, 'v') + R"("}})", ""));
  const auto run = run_verb(tools::info, {path});
  CHECK(contains(run.out, std::string(160, 'v') + "... (5,000 bytes; --json has all of it)\n"));
  CHECK_FALSE(contains(run.out, std::string(161, 'v')));
}

TEST_CASE("info --json has the numbers of the text, exactly", "[tools][info]") {
  const InfoModel model;
  const auto document = nlohmann::json::parse(run_verb(tools::info, {"--json", model.path}).out);
  CHECK(document["path"] == model.path);
  CHECK(document["size_bytes"] == 8 + 272 + 64);
  CHECK(document["tensors"] == 3);
  CHECK(document["parameters"] == 30);
  CHECK(document["header_size_bytes"] == 272);
  CHECK(document["data_offset"] == 280);
  CHECK(document["data_size_bytes"] == 64);
  CHECK(document["metadata"]["note"] == "a\nb\x1b[0m");
  CHECK(document["tensors_aligned_to"]["8"] == 3);
  CHECK(document["dtypes"][1] ==
        nlohmann::json::parse(R"({"dtype":"F4","tensors":1,"parameters":16,"size_bytes":8})"));
}

TEST_CASE("info describes an archive without tensors", "[tools][info]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("m.safetensors", test::archive_bytes("{}", ""));
  const auto run = run_verb(tools::info, {path});
  CHECK(run.code == 0);
  CHECK(contains(run.out, "tensors     0\n"));
  CHECK(contains(run.out, "metadata    none\n"));
  CHECK(nlohmann::json::parse(run_verb(tools::info, {"--json", path}).out)["dtypes"].empty());
}

TEST_CASE("info refuses a second target", "[tools][info]") {
  const InfoModel model;
  CHECK(run_verb(tools::info, {model.path, model.path}).code == 2);
}

TEST_CASE("whoever names a directory hears of another whole model beside its index", "[tools][info]") {
  const test::TemporaryDirectory directory;
  const auto archive = [&](const std::string& name, const std::string& metadata) {
    directory.write(
        name,
        test::archive_bytes("{" + metadata + R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  };
  const std::string index = directory.write("model.safetensors.index.json",
                                            R"({"weight_map":{"a":"model-00001-of-00001.safetensors"}})");
  archive("model-00001-of-00001.safetensors", "");
  archive("model-00001-of-00002.safetensors", "");
  archive("delta.safetensors", R"("__metadata__":{"safetensorsfs.delta":"2"},)");
  archive("._consolidated.safetensors", "");
  directory.write("torn.safetensors", "x");
  const std::string sums = directory / "sums";
  const std::vector<std::pair<decltype(tools::Verb::run), std::vector<std::string>>> verbs = {
      {tools::info, {}},
      {tools::ls, {}},
      {tools::recover, {}},
      {tools::verify, {"--force", "--record", sums}}};
  const auto run = [&](const auto& verb) {
    std::vector<std::string> words = {directory / "."};
    words.insert(words.end(), verb.second.begin(), verb.second.end());
    return run_verb(verb.first, words);
  };
  for (const auto& verb : verbs) CHECK(run(verb).err.empty());
  archive("consolidated.safetensors", "");
  for (const auto& verb : verbs) {
    const auto told = run(verb);
    CHECK(told.code == 0);
    CHECK(contains(told.err,
                   R"(also holds the model "consolidated.safetensors", which the index does not name)"));
  }
}

TEST_CASE("of very many problems of an index a thousand are told", "[tools][info]") {
  const test::TemporaryDirectory directory;
  directory.write("1.safetensors",
                  test::archive_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  std::string map = R"("a":"1.safetensors")";
  for (int at = 0; at < 1100; ++at) map += fmt::format(R"(,"gone{}":"1.safetensors")", at);
  const auto told = run_verb(
      tools::info, {directory.write("model.safetensors.index.json", R"({"weight_map":{)" + map + "}}")});
  CHECK(told.code == 1);
  CHECK(std::count(told.err.begin(), told.err.end(), '\n') == 1001);
  CHECK(contains(told.err, ": 100 more problems"));
}
