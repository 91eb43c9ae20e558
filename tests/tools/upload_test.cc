// stfs upload and stfs devices: their output and their refusals.
#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/plain.h"
#include "tests/support/tool_run.h"
#include "tests/support/upload_model.h"
#include "tests/tools/diff_models.h"

using namespace stfs;
using test::run_verb;

namespace {

struct Written : test::UploadModel {
  Written() { write({{"w", Dtype::BF16, {8, 16}}, {"norm", Dtype::F32, {16}}, {"ids", Dtype::I64, {4}}}); }
};

}  // namespace

TEST_CASE("upload says what it moved and how fast", "[tools][upload]") {
  const Written model;
  const auto run = run_verb(tools::upload, {model.path, "--device", "cpu", "--verify"});
  CHECK(run.code == 0);
  CHECK(run.err.empty());
  CHECK(run.out.starts_with("cpu: 3 tensors, 544 B\nmoved 352 B in "));
  CHECK(run.out.find("%") == std::string::npos);
  CHECK(run.out.find("verified 352 B on the devices\n") != std::string::npos);
}

TEST_CASE("upload's JSON has the plan and the figures", "[tools][upload]") {
  const Written model;
  const auto run = run_verb(tools::upload, {"--json", model.path, "-d", "cpu", "--dtype", "f16", "--select",
                                            "w[:2]", "--select", "ids", "--verify"});
  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  const auto json = nlohmann::json::parse(run.out);
  CHECK(json["devices"] == nlohmann::json::parse(R"([{"device":"cpu","tensors":2,"arena_bytes":288}])"));
  CHECK(
      json["tensors"][0] ==
      nlohmann::json::parse(
          R"({"name":"w","dtype":"F16","source_dtype":"BF16","shape":[2,16],"device":"cpu","offset":0,"size_bytes":64})"));
  CHECK(json["read_bytes"] == 96);
  CHECK(json["verified_bytes"] == 96);
  CHECK(json["duration_s"] > 0);
  CHECK(json["schema"] == 1);
  CHECK(json["bytes_per_second"] > 0);
}

TEST_CASE("upload's dry run shows the plan, the memory and what is not there, and moves nothing",
          "[tools][upload]") {
  const Written model;
  const auto run = run_verb(tools::upload, {model.path, "-d", "cpu", "--dry-run", "--dtype", "BF16"});
  CHECK(run.code == 0);
  CHECK(run.out.find("BF16 from F32") != std::string::npos);
  CHECK(run.out.find("cpu: 3 tensors, 544 B of ") != std::string::npos);
  CHECK(run.out.find("moved") == std::string::npos);

  const std::string rules = model.directory.write("rules", "w cuda:900\nids cpu\n");
  const auto absent = run_verb(tools::upload, {"--json", model.path, "-d", "@" + rules, "-n"});
  CHECK(absent.code == 1);
  CHECK(absent.err.starts_with("stfs upload: cuda:900: "));
  const auto json = nlohmann::json::parse(absent.out);
  CHECK(json["devices"][0]["problem"].is_string());
  CHECK(json["left_out"] == nlohmann::json::array({"norm"}));
}

TEST_CASE("upload without a device or with one that is none is wrong usage", "[tools][upload]") {
  const Written model;
  for (const tools::Arguments& arguments : {tools::Arguments{model.path},
                                            {"--device", "cpu"},
                                            {model.path, "-d", "cuda"},
                                            {model.path, "-d", "gpu"},
                                            {model.path, "-d", ""},
                                            {model.path, "-d", "cpu,cpu"},
                                            {model.path, "-d", "cpu", "--dtype", "I32"},
                                            {model.path, "-d", "cpu", "--dtype", "halves"}}) {
    const auto run = run_verb(tools::upload, arguments);
    CHECK(run.code == 2);
    CHECK(run.out.empty());
    CHECK(run.err.find("Try 'stfs upload --help'.") != std::string::npos);
  }
}

TEST_CASE("upload fails with the path and the reason", "[tools][upload]") {
  const Written model;
  const auto refused = [&](const tools::Arguments& arguments, const std::string& why) {
    const auto run = run_verb(tools::upload, arguments);
    CHECK(run.code == 1);
    CHECK(run.out.empty());
    CHECK(run.err.starts_with("stfs upload: " + why));
  };
  refused({model.path, "-d", "cuda:900"}, "cuda:900: ");
  refused({model.path, "-d", "cpu", "--select", "v"}, model.path + ": v: no tensor matches");
  refused({model.directory / "none", "-d", "cpu"}, (model.directory / "none") + ": No such file");
  refused({model.path, "-d", "@" + (model.directory / "none")}, (model.directory / "none") + ": read rules");
  refused({model.path, "-d", "@" + model.directory.write("rules", "w")},
          (model.directory / "rules") + ": line 1: ");
}

TEST_CASE("upload and serve refuse to convert FP8 tensors that have scales, unless told how",
          "[tools][upload]") {
  const test::TemporaryDirectory directory;
  const auto model = [&](const char* name, const char* dtype, const char* shape, const std::string& data) {
    return directory.write(name,
                           test::diff_archive({{"a.weight", dtype, shape, data},
                                               {"a.weight_scale_inv", "F32", "[1,1]", test::floats_of({2})},
                                               {"b.weight", dtype, shape, data},
                                               {"b.weight_scale", "F32", "[1,1]", test::floats_of({2})},
                                               {"c.bias", "F16", "[1]", std::string("\x00\x3C", 2)}}));
  };
  const std::string fp8 = model("fp8.safetensors", "F8_E4M3", "[1,2]", "\x38\x30");
  const std::string why =
      fp8 +
      ": a.weight is F8_E4M3 and needs its scales a.weight_scale_inv, and 1 more is alike: apply the scales "
      "with `stfs repack --dequantize` first, or give --cast to convert the values without them";
  const auto run = run_verb(tools::upload, {fp8, "-d", "cpu", "--dtype", "BF16"});
  CHECK(run.code == 1);
  CHECK(run.out.empty());
  CHECK(run.err == "stfs upload: " + why + "\n");
  const auto served =
      run_verb(tools::serve, {fp8, "-d", "cpu", "--dtype", "BF16", "--socket", directory / "s"});
  CHECK(served.code == 1);
  CHECK(test::contains(served.err, why));
  // Nothing is lost without a conversion, or if only other tensors are converted.
  CHECK(run_verb(tools::upload, {fp8, "-d", "cpu"}).code == 0);
  CHECK(run_verb(tools::upload, {fp8, "-d", "cpu", "--dtype", "F8_E4M3"}).code == 0);
  CHECK(run_verb(tools::upload, {fp8, "-d", "cpu", "--dtype", "F32", "--select", "c.*"}).code == 0);

  const auto cast =
      run_verb(tools::upload, {fp8, "-d", "cpu", "--dtype", "BF16", "--cast", "--json", "--verify"});
  REQUIRE(cast.code == 0);
  std::map<std::string, std::string> dtypes;
  const auto json = nlohmann::json::parse(cast.out);
  for (const auto& tensor : json["tensors"]) dtypes[tensor["name"]] = tensor["dtype"];
  CHECK(dtypes == std::map<std::string, std::string>{{"a.weight", "BF16"},
                                                     {"a.weight_scale_inv", "F32"},
                                                     {"b.weight", "BF16"},
                                                     {"b.weight_scale", "F32"},
                                                     {"c.bias", "BF16"}});
  CHECK(run_verb(tools::upload, {fp8, "-d", "cpu", "--cast"}).code == 2);
  const auto fp4 = run_verb(tools::upload,
                            {model("f4.safetensors", "F4", "[1,2]", "\x38"), "-d", "cpu", "--dtype", "F16"});
  CHECK(fp4.code == 1);
  CHECK(test::contains(fp4.err, "a.weight is F4 and needs its scales"));
}

TEST_CASE("devices lists the CPU, and why there is no GPU", "[tools][upload]") {
  const auto text = run_verb(tools::devices, {});
  CHECK(text.code == 0);
  CHECK(text.out.starts_with("device"));
  CHECK(text.out.find("\ncpu ") != std::string::npos);
  const auto json = nlohmann::json::parse(run_verb(tools::devices, {"--json"}).out);
  CHECK(json["devices"][0]["device"] == "cpu");
  CHECK(json["devices"][0]["uuid"].is_null());
  CHECK(json["why_no_cuda"].is_null() == (json["devices"].size() > 1));
  CHECK(json["why_no_cuda"].is_null() == (text.out.find("no GPU: ") == std::string::npos));
  CHECK(run_verb(tools::devices, {"extra"}).code == 2);
}
