// stfs ls: the listed tensors, their order, and the escaping of names on a terminal.
#include <nlohmann/json.hpp>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tests/support/tool_run.h"

using namespace stfs;
using test::run_verb;

namespace {

// Data: b.weight at 0, a.weight at 8, c at 24, empty at 25.
const std::string kLsHeader = R"({"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},)"
                              R"("b.weight":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},)"
                              R"("c[0]":{"dtype":"U8","shape":[],"data_offsets":[24,25]},)"
                              R"("":{"dtype":"I64","shape":[3,0],"data_offsets":[25,25]}})";

struct LsModel {
  test::TemporaryDirectory directory;
  std::string path =
      directory.write("m.safetensors", test::archive_bytes(kLsHeader, std::string(25, '\x11')));
};

}  // namespace

TEST_CASE("ls prints name, dtype, shape and size aligned, in the order of the data", "[tools][ls]") {
  const LsModel model;
  const auto run = run_verb(tools::ls, {model.path});
  CHECK(run.code == 0);
  CHECK(run.err.empty());
  CHECK(run.out ==
        "b.weight  BF16  [4]     8 B\n"
        "a.weight  F32   [2,2]  16 B\n"
        "c[0]      U8    []      1 B\n"
        "\"\"        I64   [3,0]   0 B\n");
}

TEST_CASE("ls sorts by name, by size and backwards", "[tools][ls]") {
  const LsModel model;
  CHECK(run_verb(tools::ls, {"--names", "--sort", "name", model.path}).out ==
        "\"\"\na.weight\nb.weight\nc[0]\n");
  CHECK(run_verb(tools::ls, {"--names", "--sort", "size", model.path}).out ==
        "a.weight\nb.weight\nc[0]\n\"\"\n");
  CHECK(run_verb(tools::ls, {"--names", "--sort", "size", "-r", model.path}).out ==
        "\"\"\nc[0]\nb.weight\na.weight\n");
}

TEST_CASE("ls shows what any glob matches, once", "[tools][ls]") {
  const LsModel model;
  CHECK(run_verb(tools::ls, {"--names", model.path, "*.weight", "a*"}).out == "b.weight\na.weight\n");
  CHECK(run_verb(tools::ls, {"--names", model.path, "[ab].weight"}).out == "b.weight\na.weight\n");
  CHECK(run_verb(tools::ls, {"--names", model.path, ""}).out == "\"\"\n");
}

TEST_CASE("ls takes a name with brackets literally as well as as a pattern", "[tools][ls]") {
  const LsModel model;
  CHECK(run_verb(tools::ls, {"--names", model.path, "c[0]"}).out == "c[0]\n");
}

TEST_CASE("ls keeps a pattern that is one bracket expression whole", "[tools][ls]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("m.safetensors", test::archive_of({{"a", "1"}, {"[a,b]", "2"}}));
  CHECK(run_verb(tools::ls, {"--names", path, "[a,b]"}).out == "a\n[a,b]\n");
}

TEST_CASE("ls fails on a glob that matches nothing, after listing what the others match", "[tools][ls]") {
  const LsModel model;
  const auto run = run_verb(tools::ls, {"--names", model.path, "a.wieght", "b*"});
  CHECK(run.code == 1);
  CHECK(run.out == "b.weight\n");
  CHECK(run.err ==
        "stfs ls: " + model.path + ": a.wieght: no tensor matches, did you mean a.weight or b.weight?\n");
}

TEST_CASE("ls --bytes prints exact sizes", "[tools][ls]") {
  const test::TemporaryDirectory directory;
  const std::string path =
      directory.write("m.safetensors", test::archive_of({{"a", std::string(1537, 'x')}}));
  CHECK(run_verb(tools::ls, {path}).out == "a  U8  [1537]  1.5 KiB\n");
  CHECK(run_verb(tools::ls, {"--bytes", path}).out == "a  U8  [1537]  1537\n");
}

TEST_CASE("ls --json gives every name exactly and the absolute offset", "[tools][ls]") {
  const LsModel model;
  const auto run = run_verb(tools::ls, {"--json", model.path});
  const auto document = nlohmann::json::parse(run.out);
  CHECK(document["schema"] == 1);
  CHECK(document["path"] == model.path);
  const auto& rows = document["tensors"];
  REQUIRE(rows.size() == 4);
  CHECK(rows[1] ==
        nlohmann::json::parse(R"({"name":"a.weight","dtype":"F32","shape":[2,2],"size_bytes":16,"offset":)" +
                              std::to_string(8 + kLsHeader.size() + 8) + "}"));
  CHECK(rows[3]["name"] == "");
  CHECK(rows[3]["shape"] == nlohmann::json::parse("[3,0]"));
}

TEST_CASE("ls --json of nothing has an empty array", "[tools][ls]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("m.safetensors", test::archive_bytes("{}", ""));
  CHECK(run_verb(tools::ls, {"--json", path}).out ==
        "{\n  \"schema\": 1,\n  \"path\": \"" + path + "\",\n  \"tensors\": []\n}\n");
  CHECK(run_verb(tools::ls, {path}).out.empty());
}

TEST_CASE("ls never sends a control character to the terminal, but JSON has it", "[tools][ls]") {
  const test::TemporaryDirectory directory;
  const std::string name = "\x1b[2J\n\u009b\u202ex\\ ";
  const std::string path =
      directory.write("m.safetensors", test::archive_of({{name, "1"}, {std::string("n\0l", 3), "2"}}));
  const auto run = run_verb(tools::ls, {"--names", path});
  CHECK(run.out == "\\x1b[2J\\n\\u009b\\u202ex\\\\\\x20\nn\\x00l\n");
  const auto rows = nlohmann::json::parse(run_verb(tools::ls, {"--json", path}).out)["tensors"];
  CHECK(rows[0]["name"] == name);
  CHECK(rows[1]["name"] == std::string("n\0l", 3));
  CHECK(run_verb(tools::ls, {"--names", path, "n?l"}).out == "n\\x00l\n");
}

TEST_CASE("ls aligns wide and combining characters by their width", "[tools][ls]") {
  const test::TemporaryDirectory directory;
  const std::string path =
      directory.write("m.safetensors", test::archive_of({{"重み", "1"}, {"o\u0308", "2"}}));
  CHECK(run_verb(tools::ls, {path}).out == "重み  U8  [1]  1 B\no\u0308     U8  [1]  1 B\n");
}

TEST_CASE("ls lets an endless name shift its own row only", "[tools][ls]") {
  const test::TemporaryDirectory directory;
  const std::string path =
      directory.write("m.safetensors", test::archive_of({{"a", "1"}, {std::string(300, 'x'), "2"}}));
  CHECK(run_verb(tools::ls, {path}).out == "a  U8  [1]  1 B\n" + std::string(300, 'x') + "  U8  [1]  1 B\n");
}

TEST_CASE("ls stops when nobody takes its output", "[tools][ls]") {
  const LsModel model;
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  out.setstate(std::ios::badbit);
  tools::Streams streams{in, out, err};
  CHECK(tools::ls({model.path}, streams) == 1);
  CHECK(err.str().empty());
}

TEST_CASE("ls refuses what it does not understand with exit code 2", "[tools][ls]") {
  const LsModel model;
  CHECK(run_verb(tools::ls, {}).code == 2);
  CHECK(run_verb(tools::ls, {"--sort", "colour", model.path}).code == 2);
  CHECK(run_verb(tools::ls, {"--nonsense", model.path}).code == 2);
  CHECK(run_verb(tools::ls, {"--json", "--bytes", model.path}).code == 2);
  CHECK(run_verb(tools::ls, {}).err.find("TARGET is required") != std::string::npos);
}
