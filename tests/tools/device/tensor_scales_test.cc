// Names decide which tensors are scales; shapes decide which block of values each scale multiplies.
#include "tools/device/tensor_scales.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/tools/diff_models.h"
#include "tests/tools/repack_source.h"

using namespace stfs;
using test::contains;

namespace {

struct Form {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
};

/// A model of zeros.
struct Scaled {
  explicit Scaled(const std::vector<Form>& forms) {
    std::vector<test::DiffTensor> tensors;
    for (const Form& form : forms) {
      const auto size_bytes = data_size_bytes(*dtype_named(form.dtype), form.shape);
      tensors.push_back({form.name, form.dtype, shape_text(form.shape), std::string(*size_bytes, '\0')});
    }
    model = test::repacked(directory.write("m.safetensors", test::diff_archive(tensors)));
  }
  [[nodiscard]] const TensorIndex& index() const { return model->tensors(); }
  [[nodiscard]] Tensor at(const std::string& name) const { return index()[*index().find(name)]; }
  [[nodiscard]] bool is_scale(const std::string& name) const { return device::is_scale(index(), at(name)); }

  test::TemporaryDirectory directory;
  std::unique_ptr<Model> model;
};

using Blocks = std::vector<std::uint64_t>;

/// The blocks of w.weight with one tensor of scales beside it; empty if they are not known.
Blocks blocks_of(const Form& values, const Form& scales) {
  const Scaled model({values, scales});
  const auto known = device::known_scales_of(model.index(), model.at(values.name));
  if (!known) {
    INFO(known.error().message);
    CHECK(contains(known.error().message, scales.name));
    return {};
  }
  CHECK(model.index()[known->tensor].name == scales.name);
  return known->blocks;
}

}  // namespace

TEST_CASE("scales are known by their names, by the tensor beside them, or by their dtype",
          "[tools][scales]") {
  const Scaled model({{"a.weight", "F8_E4M3", {2, 2}},
                      {"a.weight_scale_inv", "F32", {1, 1}},
                      {"a.input_scale", "F32", {}},
                      {"b.qweight", "I32", {2, 2}},
                      {"b.scales", "F16", {2}},
                      {"b.bias", "F16", {2}},
                      {"c.experts.up_blocks", "U8", {2, 16}},
                      {"c.experts.up_scales", "U8", {2}},
                      {"d.x", "F8_E8M0", {2}},
                      {"attn.k_scale", "F32", {}},
                      {"logit_scale", "F32", {}},
                      {"norm.scale", "F32", {4}},
                      {"norm.weight", "F32", {4}},
                      {"e.weight", "F8_E4M3", {2, 2}},
                      {"e.weight.scale", "F32", {}},
                      {"e.weight.absmax", "F32", {}},
                      {"e.scale_weight", "F32", {}},
                      {"layer_scale.gamma", "F32", {4}}});
  for (const char* name : {"a.weight_scale_inv", "a.input_scale", "b.scales", "c.experts.up_scales", "d.x",
                           "attn.k_scale", "e.weight.scale", "e.weight.absmax", "e.scale_weight"}) {
    CAPTURE(name);
    CHECK(model.is_scale(name));
  }
  for (const char* name : {"a.weight", "b.qweight", "b.bias", "c.experts.up_blocks", "logit_scale",
                           "norm.scale", "norm.weight", "layer_scale.gamma"}) {
    CAPTURE(name);
    CHECK_FALSE(model.is_scale(name));
  }
  CHECK(device::packed_fault(model.index(), model.at("b.qweight")));
  CHECK(device::packed_fault(model.index(), model.at("c.experts.up_blocks")));
  CHECK_FALSE(device::packed_fault(model.index(), model.at("c.experts.up_scales")));
  CHECK_FALSE(device::packed_fault(model.index(), model.at("a.weight")));
}

TEST_CASE("the shapes tell what each scale multiplies", "[tools][scales]") {
  const Form fp8{"w.weight", "F8_E4M3", {200, 300}};
  CHECK(blocks_of(fp8, {"w.weight_scale_inv", "F32", {2, 3}}) == Blocks{128, 128});
  CHECK(blocks_of(fp8, {"w.weight_scale_inv", "BF16", {}}) == Blocks{200, 300});
  CHECK(blocks_of(fp8, {"w.scale", "F8_E8M0", {2, 3}}) == Blocks{128, 128});
  CHECK(blocks_of(fp8, {"w.scale_weight", "F32", {}}) == Blocks{200, 300});
  CHECK(blocks_of(fp8, {"w.weight_scale", "F32", {1}}) == Blocks{200, 300});
  CHECK(blocks_of(fp8, {"w.weight_scale", "BF16", {200, 1}}) == Blocks{1, 300});
  CHECK(blocks_of(fp8, {"w.weight_scale", "F32", {2, 3}}) == Blocks{128, 128});
  CHECK(blocks_of({"up", "F8_E4M3", {5, 256, 130}}, {"up_scale_inv", "F32", {5, 2, 2}}) ==
        Blocks{1, 128, 128});
  CHECK(blocks_of({"w.weight", "F8_E5M2", {4, 64}}, {"w.weight_scale", "F8_E8M0", {4, 2}}) == Blocks{1, 32});
  CHECK(blocks_of({"up", "F4", {3, 4, 64}}, {"up_scales", "F8_E8M0", {3, 4, 2}}) == Blocks{1, 1, 32});
}

TEST_CASE("scales of unknown shapes, dtypes and names are refused", "[tools][scales]") {
  const Form fp8{"w.weight", "F8_E4M3", {200, 300}};
  CHECK(blocks_of(fp8, {"w.weight_scale_inv", "F32", {4, 5}}).empty());
  CHECK(blocks_of(fp8, {"w.weight_scale_inv", "F32", {200, 1}}).empty());
  CHECK(blocks_of(fp8, {"w.weight_scale", "F32", {200}}).empty());
  CHECK(blocks_of(fp8, {"w.weight_scale", "F32", {1, 300}}).empty());
  CHECK(blocks_of(fp8, {"w.weight_scale", "U8", {2, 3}}).empty());
  CHECK(blocks_of(fp8, {"w.weight_global_scale", "F32", {}}).empty());
  for (const char* const unknown : {"w.weight.scale", "w.weight.absmax", "w.w_scale"})
    CHECK(blocks_of(fp8, {unknown, "F32", {}}).empty());
  CHECK(blocks_of({"up", "F4", {4, 64}}, {"up_scales", "F32", {4, 2}}).empty());
  CHECK(blocks_of({"up", "F4", {4, 64}}, {"up_scale", "F8_E4M3", {4, 4}}).empty());  // NVFP4
  CHECK(blocks_of({"up", "F4", {4, 48}}, {"up_scales", "F8_E8M0", {4, 2}}).empty());

  const Scaled two({fp8, {"w.weight_scale", "F32", {}}, {"w.weight_scale_2", "F32", {}}});
  const auto known = device::known_scales_of(two.index(), two.at("w.weight"));
  REQUIRE_FALSE(known);
  CHECK(contains(known.error().message, "w.weight_scale (F32 []) and w.weight_scale_2 (F32 [])"));
}

TEST_CASE("each element is multiplied by the scale of its block", "[tools][scales]") {
  const std::vector<std::uint64_t> shape = {2, 3, 5};
  const std::vector<std::uint64_t> blocks = {1, 2, 2};  // 2 x 2 x 3 scales
  const std::vector<float> scales = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (std::uint64_t first = 0; first < 30; ++first) {
    std::vector<float> values(30 - first, 1.0F);
    device::apply_scales(shape, blocks, scales, first, values);
    for (std::uint64_t at = first; at < 30; ++at) {
      const std::uint64_t plane = at / 15;
      const std::uint64_t row = at / 5 % 3;
      CHECK(values[at - first] == scales[plane * 6 + row / 2 * 3 + at % 5 / 2]);
    }
  }
}
