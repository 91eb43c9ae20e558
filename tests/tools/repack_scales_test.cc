// stfs repack --dtype of models with quantized tensors: refuses, dequantizes or casts, as the options say.
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/model_content.h"
#include "tests/support/plain.h"
#include "tests/support/tool_run.h"
#include "tests/tools/diff_models.h"
#include "tests/tools/repack_source.h"

using namespace stfs;
using test::contains;
using test::floats_of;
using test::Names;
using test::names_of;
using test::repacked;
using test::run_verb;
using test::tensor_content;

namespace {

/// An FP8 layer with a scale of 2 for its values 1 and 0.5, and other tensors beside it.
struct QuantizedModel {
  test::TemporaryDirectory directory;
  std::string path = directory.write(
      "m.safetensors", test::diff_archive({{"a.weight", "F8_E4M3", "[1,2]", "\x38\x30"},
                                           {"a.weight_scale_inv", "F32", "[1,1]", floats_of({2})},
                                           {"a.input_scale", "F32", "[]", floats_of({3})},
                                           {"a.bias", "F16", "[1]", std::string("\x00\x3C", 2)},
                                           {"count", "I64", "[]", "12345678"}}));
  std::string out = directory / "out.safetensors";
};

Dtype dtype_in(const Model& model, const std::string& name) {
  return model.tensors()[*model.tensors().find(name)].dtype;
}

}  // namespace

TEST_CASE("repack refuses to convert FP8 tensors that have scales, unless told how", "[tools][repack]") {
  const QuantizedModel model;
  const auto run = run_verb(tools::repack, {"--dtype", "BF16", model.path, model.out});
  CHECK(run.code == 1);
  CHECK(contains(run.err, "a.weight is F8_E4M3 and needs its scales a.weight_scale_inv: give --dequantize"));
  CHECK_FALSE(std::filesystem::exists(model.out));
  CHECK(run_verb(tools::repack, {"--dtype", "*.bias=F32", model.path, model.out}).code == 0);
  CHECK(dtype_in(*repacked(model.out), "a.weight") == Dtype::F8_E4M3);
  CHECK(run_verb(tools::repack, {"--cast", model.path, model.out}).code == 2);
  CHECK(run_verb(tools::repack, {"--dequantize", "--cast", "--dtype", "BF16", model.path, model.out}).code ==
        2);
}

TEST_CASE("repack applies scales, leaves them out, and names each tensor that stays", "[tools][repack]") {
  const QuantizedModel model;
  const auto run = run_verb(tools::repack, {"--dtype", "float32", "--dequantize", model.path, model.out});
  CHECK(run.err.empty());
  REQUIRE(run.code == 0);
  CHECK_FALSE(contains(run.out, "a.input_scale"));  // it is F32 already
  CHECK(contains(run.out, "\napplied the scales of 1 tensor\n"));
  CHECK(contains(run.out, "\ncount stays I64: only real floating-point numbers are converted\n"));
  const auto written = repacked(model.out);
  CHECK(names_of(*written) == Names{"a.weight", "a.input_scale", "a.bias", "count"});
  CHECK(tensor_content(*written, "a.weight") == floats_of({2, 1}));
  CHECK(tensor_content(*written, "a.input_scale") == floats_of({3}));

  const auto json =
      run_verb(tools::repack, {"-f", "--json", "--dtype", "bf16", "--dequantize", model.path, model.out});
  const auto document = nlohmann::json::parse(json.out);
  CHECK(document["applied_scales"] == 1);
  REQUIRE(document["kept_dtypes"].size() == 2);
  CHECK(document["kept_dtypes"][0]["name"] == "a.input_scale");
  CHECK(document["kept_dtypes"][0]["why"] == "a scale");
  CHECK(document["kept_dtypes"][1]["dtype"] == "I64");
}

TEST_CASE("repack casts the values alone, and keeps the scales exact", "[tools][repack]") {
  const QuantizedModel model;
  const auto run = run_verb(tools::repack, {"--dtype", "BF16", "--cast", model.path, model.out});
  REQUIRE(run.code == 0);
  CHECK(contains(run.out, "\na.weight_scale_inv stays F32: a scale\n"));
  const auto written = repacked(model.out);
  CHECK(tensor_content(*written, "a.weight") == std::string("\x80\x3F\x00\x3F", 4));
  CHECK(dtype_in(*written, "a.weight_scale_inv") == Dtype::F32);
  CHECK(dtype_in(*written, "a.bias") == Dtype::BF16);
}

TEST_CASE("repack narrows no scale, even if a glob names it", "[tools][repack]") {
  const QuantizedModel model;
  const auto run = run_verb(tools::repack, {"--dtype", "*_scale_inv=BF16", model.path, model.out});
  CHECK(run.code == 1);
  CHECK(contains(run.err, "a.weight_scale_inv is a scale: BF16 can't hold all values of F32"));
  CHECK_FALSE(std::filesystem::exists(model.out));
}

TEST_CASE("repack dequantizes nothing that it does not know", "[tools][repack]") {
  const test::TemporaryDirectory directory;
  const std::string out = directory / "out.safetensors";
  const std::string path = directory.write(
      "m.safetensors",
      test::diff_archive({{"a.qweight", "I32", "[1]", "1234"}, {"a.scales", "F16", "[1]", "12"}}));
  const auto run = run_verb(tools::repack, {"--dtype", "F32", "--dequantize", path, out});
  CHECK(run.code == 1);
  CHECK(contains(run.err, "a.qweight (I32 [1]): holds quantized values with the scales a.scales"));
  // Without --dequantize both stay, by name.
  const auto kept = run_verb(tools::repack, {"--dtype", "F32", path, out});
  CHECK(kept.code == 0);
  CHECK(contains(kept.out, "\na.qweight stays I32: only real floating-point numbers are converted\n"));
  CHECK(contains(kept.out, "\na.scales stays F16: a scale\n"));
}

TEST_CASE("repack converts F4 tensors without scales", "[tools][repack]") {
  const test::TemporaryDirectory directory;
  const std::string out = directory / "out.safetensors";
  // 0.5, 1, 6, -6 and four more of 1: the low half of a byte first.
  const std::string path =
      directory.write("m.safetensors", test::diff_archive({{"w", "F4", "[2,4]", "\x21\xF7\x22\x22"}}));
  REQUIRE(run_verb(tools::repack, {"--dtype", "F32", path, out}).code == 0);
  CHECK(tensor_content(*repacked(out), "w") == floats_of({0.5F, 1, 6, -6, 1, 1, 1, 1}));
}
