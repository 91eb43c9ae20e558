// The tensors that stfs repack selects, their order, and their dtypes.
#include "tools/cli/repack_plan.h"

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/model_content.h"
#include "tests/support/plain.h"
#include "tests/support/tool_run.h"
#include "tests/tools/repack_source.h"

using namespace stfs;
using test::contains;
using test::Names;
using test::names_of;
using test::repacked;
using test::RepackSource;
using test::run_verb;
using test::tensor_content;

TEST_CASE("repack sorts by name with numbers, and as the reference does", "[tools][repack]") {
  const RepackSource source;
  const std::string out = source.at("out.safetensors");
  REQUIRE(run_verb(tools::repack, {"--order", "name", source.path, out}).code == 0);
  // The tensor without bytes shares its offset with its neighbour, and readers sort by offset.
  CHECK(names_of(*repacked(out)) == Names{"count", "empty", "layer.2.b", "layer.2.w", "layer.10.w", "odd"});
  REQUIRE(run_verb(tools::repack, {"-f", "--order", "reference", source.path, out}).code == 0);
  const auto model = repacked(out);
  CHECK(names_of(*model) == Names{"count", "empty", "layer.10.w", "layer.2.w", "layer.2.b", "odd"});
  for (std::uint32_t at = 0; at < model->tensors().size(); ++at) {
    CHECK(model->file_range(at).offset * 8 % bits_of(model->tensors()[at].dtype) == 0);
  }
}

TEST_CASE("numbers inside names compare as numbers", "[tools][repack]") {
  const Names sorted = {"",
                        "a",
                        "a.0",
                        "a.1",
                        "a.1.b",
                        "a.2",
                        "a.10",
                        "a.10.c",
                        "a.99999999999999999999",
                        "a.100000000000000000000",
                        "ab",
                        "b",
                        "\xC3\xA4"};
  for (std::size_t a = 0; a < sorted.size(); ++a) {
    for (std::size_t b = 0; b < sorted.size(); ++b) {
      INFO(sorted[a] << " before " << sorted[b]);
      CHECK(tools::is_before_by_number(sorted[a], sorted[b]) == (a < b));
    }
  }
  CHECK(tools::is_before_by_number("a.01", "a.1"));
  CHECK_FALSE(tools::is_before_by_number("a.1", "a.01"));
  CHECK(tools::is_before_by_number("a.01.x", "a.1.y"));
}

TEST_CASE("repack keeps and drops by globs", "[tools][repack]") {
  const RepackSource source;
  const std::string out = source.at("out.safetensors");
  const auto kept = run_verb(tools::repack, {"--keep", "layer.*", "--drop", "*.b", source.path, out});
  CHECK(contains(kept.out, ": 2 tensors, 16 B\nleft out 4 tensors\n"));
  CHECK(names_of(*repacked(out)) == Names{"layer.10.w", "layer.2.w"});
  CHECK(tensor_content(*repacked(out), "layer.2.w") == RepackSource::floats({-2, 0.5F}));

  const auto unknown =
      run_verb(tools::repack, {"-f", "--drop", "layer.3.*", "--keep", "od", source.path, out});
  CHECK(unknown.code == 1);
  CHECK(contains(unknown.err, ": od: no tensor matches, did you mean odd?\n"));
  const auto nothing = run_verb(tools::repack, {"-f", "--drop", "*", source.path, out});
  CHECK(nothing.code == 1);
  CHECK(contains(nothing.err, "no tensor is left to write"));
  CHECK(names_of(*repacked(out)) == Names{"layer.10.w", "layer.2.w"});
}

TEST_CASE("repack converts by the first rule that matches", "[tools][repack]") {
  const RepackSource source;
  const std::string out = source.at("out.safetensors");
  const auto run =
      run_verb(tools::repack, {"--dtype", "layer.2.b=F32", "--dtype", "F16", "--json", source.path, out});
  REQUIRE(run.code == 0);
  const auto document = nlohmann::json::parse(run.out);
  CHECK(document["overflows"] == 1);  // 1e30
  CHECK(document["written"] == true);
  CHECK(document["tensors"][1]["dtype"] == "F16");
  CHECK(document["tensors"][1]["source_dtype"] == "F32");
  const auto model = repacked(out);
  CHECK(tensor_content(*model, "layer.2.b") == RepackSource::floats({1, 57344}));
  CHECK(tensor_content(*model, "layer.2.w") == std::string("\x00\xC0\x00\x38", 4));
  CHECK(tensor_content(*model, "layer.10.w") == std::string("\x00\x3C\x00\x7C", 4));
  CHECK(tensor_content(*model, "count") == "12345678");  // no floating-point number
  CHECK(model->tensors()[*model->tensors().find("empty")].dtype == Dtype::F16);

  const auto told = run_verb(tools::repack, {"-f", "--dtype", "f16", source.path, out});
  CHECK(contains(told.out, "converted 3 tensors\n"));
  CHECK(contains(told.out, "1 element did not fit the new dtype\n"));
  CHECK(run_verb(tools::repack, {"--dtype", "x=y=F17", source.path, out}).code == 2);
}
