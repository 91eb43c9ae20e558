// Plans: the place of each tensor, and refusals before any byte is copied.
#include "tools/upload/plan.h"

#include <fstream>

#include "tests/support/upload_model.h"

using namespace stfs;
using namespace stfs::upload;
using test::plan_for;
using test::request_for;

namespace {

struct SmallModel : test::UploadModel {
  SmallModel() {
    write({{"q", Dtype::BF16, {4, 6}},
           {"q2", Dtype::F32, {3}},
           {"ids", Dtype::I64, {2}},
           {"s", Dtype::F16, {}}});
  }
};

std::string error_of(const PlanRequest& request) {
  const auto plan = make_plan(request);
  REQUIRE_FALSE(plan);
  return plan.error().message;
}

device::DeviceRules rules_of(const test::UploadModel& model, const std::string& text) {
  return device::DeviceRules::read_file(model.directory.write("rules", text)).value();
}

}  // namespace

TEST_CASE("a plan places all tensors in order, aligned and apart", "[tools][upload]") {
  const SmallModel model;
  const Plan plan = plan_for(request_for(model.path));
  REQUIRE(plan.tensors.size() == 4);
  std::uint64_t end = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    CHECK(tensor.place.offset % device::kTensorAlignment == 0);
    CHECK(tensor.place.offset >= end);
    CHECK(tensor.place.size_bytes == model.tensors.at(tensor.name).size());
    end = tensor.place.end();
  }
  CHECK(plan.tensors[0].name == "q");
  CHECK(plan.tensors[0].shape == std::vector<std::uint64_t>{4, 6});
  CHECK(plan.devices.front().arena_bytes == end);
  CHECK(plan.read_bytes() == 48 + 12 + 16 + 2);
}

TEST_CASE("patterns select by whole names, with slices, and each tensor once", "[tools][upload]") {
  const SmallModel model;
  const auto names = [&](std::vector<std::string> patterns) {
    std::string text;
    for (const PlannedTensor& tensor : plan_for(request_for(model.path, std::move(patterns))).tensors) {
      text += tensor.name + shape_text(tensor.shape) + " ";
    }
    return text;
  };
  CHECK(names({"q"}) == "q[4,6] ");
  CHECK(names({"q*", "q"}) == "q[4,6] q2[3] ");
  CHECK(names({"q[1:3, ::2]", "i*"}) == "q[2,3] ids[2] ");
  CHECK(names({"q[0-9]"}) == "q2[3] ");
  CHECK(names({"q*[-1:]"}) == "q[1,6] q2[1] ");
  CHECK(error_of(request_for(model.path, {"q", "q[0]"})).ends_with("q: is selected twice, with two slices"));
  CHECK(error_of(request_for(model.path, {"q", "isd"})) ==
        model.path + ": isd: no tensor matches, did you mean ids?");
  CHECK(error_of(request_for(model.path, {"q[9]"})).find("q[9]: byte 0: index 9 is out of range") !=
        std::string::npos);
}

TEST_CASE("a shard is a slice that must come out even", "[tools][upload]") {
  const SmallModel model;
  PlanRequest request = request_for(model.path, {"q"});
  request.rules = rules_of(model, "q cpu shard(1,2/3)");
  const Plan plan = plan_for(request);
  CHECK(plan.tensors[0].shape == std::vector<std::uint64_t>{4, 2});
  CHECK(plan.tensors[0].place.size_bytes == 16);
  CHECK(plan.tensors[0].slice->first_byte == 4);

  request.rules = rules_of(model, "q cpu shard(0,1/3)");
  CHECK(error_of(request).ends_with("q: shard(0,1/3): dimension 0 of its shape [4,6] does not divide by 3"));
  request.rules = rules_of(model, "q cpu shard(2,1/3)");
  CHECK(error_of(request).ends_with("its shape [4,6] has no dimension 2"));
  request.sources[0].patterns = {"q[0]"};
  CHECK(error_of(request).ends_with("a slice and the shard of its rule exclude each other"));
}

TEST_CASE("a dtype is planned for floating tensors alone, and refused where it can't be had",
          "[tools][upload]") {
  SmallModel model;
  PlanRequest request = request_for(model.path);
  request.dtype = Dtype::F32;
  const Plan plan = plan_for(request);
  CHECK(plan.tensors[0].dtype == Dtype::F32);
  CHECK(plan.tensors[0].source_dtype == Dtype::BF16);
  CHECK(plan.tensors[0].place.size_bytes == 96);
  CHECK(plan.tensors[0].source_bytes == 48);
  CHECK(plan.tensors[2].dtype == Dtype::I64);
  request.dtype = Dtype::I32;
  CHECK(error_of(request).starts_with("I32: is not a dtype to convert to: choose one of F8_E5M2, F8_E4M3"));
  model.write({{"four", Dtype::F4, {4}}});
  request.dtype = Dtype::BF16;
  CHECK(error_of(request).ends_with(
      "four: F4 cannot be converted to BF16: select other tensors, or omit --dtype"));
}

TEST_CASE("what no rule names is left out, and every device that is named is planned for",
          "[tools][upload]") {
  const SmallModel model;
  PlanRequest request = request_for(model.path);
  request.rules = rules_of(model, "q* cuda:3, cpu\nnone cuda:5");
  const Plan plan = plan_for(request);
  CHECK(plan.left_out == std::vector<std::string>{"ids", "s"});
  REQUIRE(plan.devices.size() == 3);
  CHECK(plan.devices[2].arena_bytes == 0);
  REQUIRE(plan.tensors.size() == 4);
  CHECK(plan.tensors[0].name == plan.tensors[1].name);
  CHECK(plan.tensors[0].device != plan.tensors[1].device);
  CHECK(plan.read_bytes() == 48 + 12);  // a replica is read once
}

TEST_CASE("a directory of archives is all of them, and two tensors of one name are refused",
          "[tools][upload]") {
  SmallModel model;
  model.write({{"other", Dtype::U8, {5}}}, "b.safetensors");
  const Plan plan = plan_for(request_for(model.directory.path().string()));
  CHECK(plan.models.size() == 2);
  CHECK(plan.tensors.front().name == "other");
  CHECK(plan.tensors.size() == 5);
  model.write({{"q", Dtype::U8, {5}}}, "c.safetensors");
  CHECK(error_of(request_for(model.directory.path().string()))
            .find("already has a tensor of this name on cpu") != std::string::npos);
}

TEST_CASE("one archive under several names is opened once", "[tools][upload]") {
  const SmallModel model;
  PlanRequest request = request_for(model.path, {"q"});
  request.sources.push_back({model.directory.path() / "." / "m.safetensors", {"ids"}});
  CHECK(plan_for(request).models.size() == 1);
}

TEST_CASE("a plan passes on why a source is none", "[tools][upload]") {
  const SmallModel model;
  CHECK(make_plan(request_for(model.directory / "none")).error().errno_value == ENOENT);
  CHECK_FALSE(make_plan(request_for(model.directory.write("text", "no archive"))));
}

TEST_CASE("a change of an archive after the plan is found, whatever it was", "[tools][upload]") {
  const SmallModel model;
  const Plan plan = plan_for(request_for(model.path));
  CHECK(check_unchanged(plan));
  const auto refused = [&](const Plan& stale, const std::string& how) {
    const auto unchanged = check_unchanged(stale);
    REQUIRE_FALSE(unchanged);
    CHECK(unchanged.error().errno_value == ESTALE);
    CHECK(unchanged.error().message ==
          model.path + ": " + how + " since the upload was planned: plan it again");
  };
  SECTION("written to in place, within the same tick of the clock") {
    std::fstream(model.path, std::ios::in | std::ios::out).seekp(-1, std::ios::end).put('x');
    refused(plan, "was written to");
    refused(plan, "was written to");
    const Plan fresh = plan_for(request_for(model.path));
    std::fstream(model.path, std::ios::in | std::ios::out).seekp(-1, std::ios::end).put('y');
    refused(fresh, "was written to");
  }
  SECTION("cut") {
    std::filesystem::resize_file(model.path, 10);
    refused(plan, "was written to");
  }
  SECTION("replaced") {
    std::filesystem::copy(model.path, model.path + ".new");
    std::filesystem::rename(model.path + ".new", model.path);
    refused(plan, "was replaced");
  }
  SECTION("removed") {
    std::filesystem::remove(model.path);
    refused(plan, "was removed");
  }
}
