// stfs diff: each kind of difference, the selection of tensors, and refusals.
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tests/support/tool_run.h"
#include "tests/tools/diff_models.h"

using namespace stfs;
using test::contains;
using test::diff_archive;
using test::diff_json;
using test::DiffModels;
using test::floats_of;
using test::run_verb;

namespace {

constexpr float kDiffNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("diff of equal models prints one line", "[tools][diff]") {
  const DiffModels models;
  const auto same = run_verb(tools::diff, {models.a, models.a});
  CHECK(same.code == 0);
  CHECK(same.out == "compared 6 tensors, 38 B: equal\n");
  CHECK(same.err.empty());
  // The same model with its tensors and its metadata in another order.
  const std::string other = models.directory.write(
      "other.safetensors", diff_archive({{"old", "I64", "[]", "12345678"},
                                         {"both", "U8", "[2]", "ab"},
                                         {"reshaped", "U8", "[2,2]", "abcd"},
                                         {"retyped", "F16", "[2]", "abcd"},
                                         {"same", "BF16", "[2]", "abcd"},
                                         {"w", "F32", "[2,2]", floats_of({1, 2, 0, 4})}},
                                        R"({"same":"x","step":"12","format":"pt"})"));
  CHECK(run_verb(tools::diff, {models.a, other}).code == 0);
  CHECK(run_verb(tools::diff, {"--brief", models.a, other}).out == "compared 6 tensors, 38 B: equal\n");
}

TEST_CASE("diff prints each kind of difference on a line of its own", "[tools][diff]") {
  const DiffModels models;
  const auto run = run_verb(tools::diff, {models.a, models.b});
  CHECK(run.code == 1);
  CHECK(run.err.empty());
  CHECK(
      run.out ==
      "difference    name      A         B\n"
      "dtype         retyped   F16 [2]   BF16 [2]\n"
      "shape         reshaped  U8 [2,2]  U8 [4]\n"
      "dtype, shape  both      U8 [2]    I8 [1,2]\n"
      "only in A     old       I64 []    -\n"
      "only in B     new       -         F32 [1]\n"
      "metadata      format    \"pt\"      \"np\"\n"
      "metadata      step      \"12\"      -\n"
      "metadata      note      -         \"a long note that does not fit into the t\"... (56 bytes)\n"
      "\n"
      "other bytes  dtype  elements  different  not finite  largest  relative       cosine   norm A   norm B"
      "  norm A-B\n"
      "w            F32           4          1           0        2       0.5  0.949671470  4.58258  5.74456"
      "         2\n"
      "\n"
      "compared 7 tensors, 20 B: 1 only in A, 1 only in B, 2 of another dtype, 2 of another shape,"
      " 1 with other bytes, 3 in the metadata\n");
}

TEST_CASE("diff --brief prints only the summary", "[tools][diff]") {
  const DiffModels models;
  for (const char* option : {"--brief", "-q"}) {
    const auto run = run_verb(tools::diff, {option, models.a, models.b});
    CHECK(run.code == 1);
    CHECK(run.err.empty());
    CHECK(run.out ==
          "compared 7 tensors, 20 B: 1 only in A, 1 only in B, 2 of another dtype, 2 of another shape,"
          " 1 with other bytes, 3 in the metadata\n");
  }
  const auto document = diff_json({"--brief", models.a, models.b}, 1);
  CHECK(document["differences"].size() == 6);
  for (const auto& row : document["differences"]) CHECK(row["statistics"].is_null());
}

TEST_CASE("diff --json has everything exactly", "[tools][diff]") {
  const DiffModels models;
  const auto document = diff_json({models.a, models.b}, 1);
  CHECK(document["schema"] == 1);
  CHECK(document["path_a"] == models.a);
  CHECK(document["path_b"] == models.b);
  CHECK(document["equal"] == false);
  CHECK(document["tensors"] == 7);
  CHECK(document["size_bytes"] == 20);
  CHECK(document["problems"].empty());
  REQUIRE(document["differences"].size() == 6);
  CHECK(document["differences"][2] ==
        nlohmann::json::parse(
            R"({"name":"both","kinds":["dtype","shape"],)"
            R"("a":{"name":"both","dtype":"U8","shape":[2],"size_bytes":2},)"
            R"("b":{"name":"both","dtype":"I8","shape":[1,2],"size_bytes":2},"statistics":null})"));
  CHECK(document["differences"][3]["kinds"] == nlohmann::json::parse(R"(["only_in_a"])"));
  CHECK(document["differences"][3]["a"]["shape"].empty());
  CHECK(document["differences"][3]["b"].is_null());
  CHECK(document["differences"][4]["kinds"] == nlohmann::json::parse(R"(["only_in_b"])"));
  CHECK(document["differences"][4]["name"] == "new");
  CHECK(document["differences"][4]["a"].is_null());
  const auto& w = document["differences"][5];
  CHECK(w["name"] == "w");
  CHECK(w["kinds"] == nlohmann::json::parse(R"(["bytes"])"));
  CHECK(w["statistics"]["different"] == 1);
  CHECK(w["statistics"]["not_finite"] == 0);
  CHECK(w["statistics"]["largest_difference"] == 2.0);
  CHECK(w["statistics"]["largest_relative_difference"] == 0.5);
  CHECK(w["statistics"]["norm_difference"] == 2.0);
  CHECK(w["statistics"].size() == 8);
  CHECK(document["metadata"] ==
        nlohmann::json::parse(
            R"([{"key":"format","a":"pt","b":"np"},{"key":"step","a":"12","b":null},{"key":"note","a":null,)"
            R"("b":"a long note that does not fit into the table of the verb"}])"));

  const auto equal = diff_json({models.a, models.a}, 0);
  CHECK(equal["equal"] == true);
  CHECK(equal["differences"].empty());
  CHECK(equal["metadata"].empty());
}

TEST_CASE("diff counts NaNs and infinities and computes the rest without them", "[tools][diff]") {
  const test::TemporaryDirectory directory;
  const std::string a = directory.write("a", diff_archive({{"w", "F32", "[3]", floats_of({kDiffNan, 3, 4})},
                                                           {"nan", "F32", "[1]", floats_of({kDiffNan})}}));
  const std::string b = directory.write("b", diff_archive({{"w", "F32", "[3]", floats_of({1, 3, 8})},
                                                           {"nan", "F32", "[1]", floats_of({kDiffNan})}}));
  const auto document = diff_json({a, b}, 1);
  REQUIRE(document["differences"].size() == 1);  // equal bytes are equal, NaN or not
  const auto& statistics = document["differences"][0]["statistics"];
  CHECK(statistics["different"] == 2);
  CHECK(statistics["not_finite"] == 1);
  CHECK(statistics["largest_difference"] == 4.0);
  CHECK(statistics["norm_a"] == 5.0);
}

TEST_CASE("diff writes null for a cosine that is not there, and - in the table", "[tools][diff]") {
  const test::TemporaryDirectory directory;
  const std::string a = directory.write("a", diff_archive({{"w", "F32", "[1]", floats_of({0})}}));
  const std::string b = directory.write("b", diff_archive({{"w", "F32", "[1]", floats_of({2})}}));
  CHECK(diff_json({a, b}, 1)["differences"][0]["statistics"]["cosine"].is_null());
  CHECK(run_verb(tools::diff, {a, b}).out ==
        "other bytes  dtype  elements  different  not finite  largest  relative  cosine  norm A  norm B  "
        "norm A-B\n"
        "w            F32           1          1           0        2         1       -       0       2      "
        "   2\n"
        "\n"
        "compared 1 tensor, 4 B: 1 with other bytes\n");
}

TEST_CASE("diff compares scalars and tensors without elements", "[tools][diff]") {
  const test::TemporaryDirectory directory;
  const std::string a = directory.write(
      "a", diff_archive(
               {{"none", "F32", "[0,3]", ""}, {"scalar", "U16", "[]", "ab"}, {"last", "I32", "[0]", ""}}));
  CHECK(run_verb(tools::diff, {a, a}).out == "compared 3 tensors, 2 B: equal\n");
  const std::string b = directory.write(
      "b", diff_archive(
               {{"none", "F32", "[3,0]", ""}, {"scalar", "U16", "[]", "cb"}, {"last", "I32", "[0]", ""}}));
  const auto document = diff_json({a, b}, 1);
  REQUIRE(document["differences"].size() == 2);
  CHECK(document["differences"][0]["kinds"] == nlohmann::json::parse(R"(["shape"])"));
  CHECK(document["differences"][1]["statistics"]["largest_difference"] == 2.0);
  const std::string empty = directory.write("empty", test::archive_of({}));
  CHECK(run_verb(tools::diff, {empty, empty}).out == "compared 0 tensors, 0 B: equal\n");
  CHECK(run_verb(tools::diff, {a, empty}).out.ends_with("compared 3 tensors, 0 B: 3 only in A\n"));
}

TEST_CASE("diff compares the tensors that a GLOB matches, and no metadata then", "[tools][diff]") {
  const DiffModels models;
  CHECK(run_verb(tools::diff, {models.a, models.b, "same"}).out == "compared 1 tensor, 4 B: equal\n");
  CHECK(run_verb(tools::diff, {models.a, models.b, "same"}).code == 0);
  const auto run = run_verb(tools::diff, {"-q", models.a, models.b, "re*", "new", "re*"});
  CHECK(run.code == 1);
  CHECK(run.out == "compared 3 tensors, 0 B: 1 only in B, 1 of another dtype, 1 of another shape\n");
}

TEST_CASE("diff fails on a GLOB that matches nothing, and compares what the others match", "[tools][diff]") {
  const DiffModels models;
  const auto run = run_verb(tools::diff, {models.a, models.b, "smae", "same"});
  CHECK(run.code == 1);
  CHECK(run.out == "compared 1 tensor, 4 B: no difference found\n");
  CHECK(run.err ==
        "stfs diff: " + models.a + ", " + models.b + ": smae: no tensor matches, did you mean same?\n");
  const auto document = diff_json({models.a, models.b, "smae", "same"}, 1);
  CHECK(document["equal"] == false);
  CHECK(document["problems"][0]["kinds"] == nlohmann::json::parse(R"(["glob"])"));
}

TEST_CASE("diff compares a sharded model with one archive", "[tools][diff]") {
  const test::TemporaryDirectory directory;
  const std::string whole = directory.write("whole", test::archive_of({{"a", "12"}, {"b", "34"}}));
  const std::string shards = directory / "shards";
  std::filesystem::create_directory(shards);
  directory.write("shards/1.safetensors", test::archive_of({{"b", "34"}}));
  directory.write("shards/2.safetensors", test::archive_of({{"a", "12"}}));
  const std::string index = directory.write("shards/m.safetensors.index.json",
                                            R"({"weight_map":{"a":"2.safetensors","b":"1.safetensors"}})");
  CHECK(run_verb(tools::diff, {index, whole}).out == "compared 2 tensors, 4 B: equal\n");
  CHECK(run_verb(tools::diff, {whole, shards}).code == 0);

  directory.write("shards/2.safetensors", test::archive_of({{"a", "13"}}));
  CHECK(diff_json({whole, shards}, 1)["differences"][0]["name"] == "a");

  std::filesystem::remove(directory / "shards/1.safetensors");
  const auto run = run_verb(tools::diff, {"-q", whole, shards, "a"});
  CHECK(run.code == 1);
  CHECK(contains(run.err, "stfs diff: " + index + ": "));
  CHECK(contains(run.err, "1.safetensors"));
  CHECK_FALSE(diff_json({whole, shards}, 1)["problems"].empty());
}

TEST_CASE("diff does not call models equal whose shards are not all there", "[tools][diff]") {
  const test::TemporaryDirectory directory;
  directory.write("1.safetensors", test::archive_of({{"a", "12"}}));
  const std::string index = directory.write("m.safetensors.index.json",
                                            R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  const auto run = run_verb(tools::diff, {index, index});
  CHECK(run.code == 1);
  CHECK(run.out == "compared 1 tensor, 2 B: no difference found\n");
  CHECK(contains(run.err, "2.safetensors"));
  CHECK(diff_json({index, index}, 1)["equal"] == false);
}

TEST_CASE("diff compares metadata where all tensors are equal", "[tools][diff]") {
  const test::TemporaryDirectory directory;
  const std::string a = directory.write("a", test::archive_of({{"t", "1"}}, R"({"k":"v"})"));
  const std::string b = directory.write("b", test::archive_of({{"t", "1"}}));
  const auto run = run_verb(tools::diff, {a, b});
  CHECK(run.code == 1);
  CHECK(run.out ==
        "difference  name  A    B\n"
        "metadata    k     \"v\"  -\n"
        "\n"
        "compared 1 tensor, 1 B: 1 in the metadata\n");
}

TEST_CASE("diff prints names and metadata that are safe for a terminal", "[tools][diff]") {
  const test::TemporaryDirectory directory;
  const std::string a = directory.write("a", test::archive_of({{"\x1b[2J", "1"}}, R"({"k":"\u001b[2J"})"));
  const std::string b = directory.write("b", test::archive_of({}));
  CHECK_FALSE(contains(run_verb(tools::diff, {a, b}).out, "\x1b"));
  CHECK(diff_json({a, b}, 1)["differences"][0]["name"] == "\x1b[2J");
}

TEST_CASE("diff needs two models and known options", "[tools][diff]") {
  const DiffModels models;
  for (const tools::Arguments& arguments :
       std::vector<tools::Arguments>{{},
                                     {models.a},
                                     {models.a, models.b, "--unknown"},
                                     {models.a, models.b, "--threads", "0"},
                                     {models.a, models.b, "--threads"}}) {
    const auto run = run_verb(tools::diff, arguments);
    CHECK(run.code == 2);
    CHECK(run.out.empty());
    CHECK(run.err.ends_with("Try 'stfs diff --help'.\n"));
  }
}

TEST_CASE("diff names each model that it cannot open", "[tools][diff]") {
  const DiffModels models;
  const std::string none = models.directory / "none";
  const auto missing = run_verb(tools::diff, {none, none});
  CHECK(missing.code == 1);
  CHECK(missing.out.empty());
  CHECK(missing.err == "stfs diff: " + none + ": No such file or directory\nstfs diff: " + none +
                           ": No such file or directory\n");
  const std::string text = models.directory.write("text", "this is no archive at all");
  const auto wrong = run_verb(tools::diff, {models.a, text});
  CHECK(wrong.code == 1);
  CHECK(wrong.err.starts_with("stfs diff: " + text + ": not a safetensors archive: "));
  std::string cut = test::content_of(models.a);
  cut.pop_back();
  const auto truncated = run_verb(tools::diff, {models.directory.write("cut", cut), models.b});
  CHECK(truncated.code == 1);
  CHECK(truncated.out.empty());
  CHECK(truncated.err.starts_with("stfs diff: " + (models.directory / "cut") + ": "));
}
