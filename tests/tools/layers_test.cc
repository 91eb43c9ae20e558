// The layers of a model, by the names of its tensors.
#include "tools/text/layers.h"

#include <fmt/format.h>

#include <numeric>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tools/target/target.h"

using namespace stfs;
using namespace stfs::tools;

namespace {

/// A model with empty tensors of these names.
std::vector<Layer> layers_of_names(const std::vector<std::string>& names, std::size_t most) {
  std::string header = "{";
  for (const std::string& name : names)
    header += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                          header.size() > 1 ? "," : "", name);
  const test::TemporaryDirectory directory;
  const auto target =
      open_target(directory.write("m.safetensors", test::archive_bytes(header + "}", "")), Use::Model);
  REQUIRE(target);
  std::vector<std::uint32_t> positions(names.size());
  std::iota(positions.begin(), positions.end(), 0U);
  return layers_of(target->model->tensors(), positions, most);
}

std::vector<std::string> labels_of(const std::vector<Layer>& layers) {
  std::vector<std::string> labels;
  for (const Layer& layer : layers) labels.push_back(layer.label);
  return labels;
}

}  // namespace

TEST_CASE("the first number in a name ends the name of its layer", "[tools][layers]") {
  const LayerName name = layer_of("model.layers.12.mlp.experts.3.w1.weight");
  CHECK(name.stem == "model.layers");
  CHECK(name.number == 12U);
  CHECK(name.rest == "mlp.experts.*.w1.weight");
  CHECK(layer_of("0.weight").number == 0U);
}

TEST_CASE("a name without a number belongs to the layer that its last part leaves", "[tools][layers]") {
  for (const auto& [name, stem, rest] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"model.norm.weight", "model.norm", "weight"},
           {"lm_head", "lm_head", ""},
           {"", "", ""},
           {"..", ".", ""}}) {
    const LayerName found = layer_of(name);
    CAPTURE(name);
    CHECK_FALSE(found.number);
    if (name != "..") CHECK(found.stem == stem);
    CHECK(found.rest == rest);
  }
  CHECK_FALSE(layer_of("layers.007.weight").number);
  CHECK_FALSE(layer_of("layers.12345678901234567890.weight").number);
}

TEST_CASE("layers have the order of their numbers", "[tools][layers]") {
  CHECK(labels_of(layers_of_names({"l.10.a", "norm.w", "l.9.a", "l.9.b", "head.w"}, 40)) ==
        std::vector<std::string>{"head", "l.9", "l.10", "norm"});
}

TEST_CASE("neighbours are joined until the layers are few enough", "[tools][layers]") {
  std::vector<std::string> names = {"head.w"};
  for (int at = 0; at < 10; ++at) names.push_back(fmt::format("l.{}.w", at));
  const auto layers = layers_of_names(names, 6);
  CHECK(labels_of(layers) == std::vector<std::string>{"head", "l.0-1", "l.2-3", "l.4-5", "l.6-7", "l.8-9"});
  CHECK(layers[1].tensors == std::vector<std::uint32_t>{1, 2});
  CHECK(labels_of(layers_of_names(names, 2)) == std::vector<std::string>{"head", "l.0-9"});
}

TEST_CASE("layers without numbers that are too many share the last one", "[tools][layers]") {
  const auto layers = layers_of_names({"a.w", "b.w", "c.w", "d.w"}, 2);
  CHECK(labels_of(layers) == std::vector<std::string>{"a", "3 others"});
  CHECK(layers[1].tensors == std::vector<std::uint32_t>{1, 2, 3});
}

TEST_CASE("no more neighbours are joined than it takes", "[tools][layers]") {
  std::vector<std::string> names;
  for (int at = 0; at < 10; ++at) names.push_back(fmt::format("l.{}.w", at));
  CHECK(labels_of(layers_of_names(names, 5)) ==
        std::vector<std::string>{"l.0-1", "l.2-3", "l.4-5", "l.6-7", "l.8-9"});
  CHECK(labels_of(layers_of_names(names, 4)) == std::vector<std::string>{"l.0-3", "l.4-7", "l.8-9"});
}

TEST_CASE("a number of nine digits is joined with zero", "[tools][layers]") {
  CHECK(labels_of(layers_of_names({"a.999999999.w", "a.0.w", "b.1", "c.w", "c.2.w"}, 4)) ==
        std::vector<std::string>{"a.0-999999999", "b.0-1", "c", "c.0-2"});
}

TEST_CASE("a name of a million dots has a layer", "[tools][layers]") {
  const std::string dots(1'000'000, '.');
  CHECK(layer_of(dots).stem == dots.substr(1));
  CHECK(layer_of(dots + "7.w").number == 7U);
}

TEST_CASE("a label of more than 256 bytes is shown by its ends", "[tools][layers]") {
  const std::string name(256, 'a');
  CHECK(short_label(name) == name);
  CHECK(short_label("b" + name + "c") == "b" + std::string(119, 'a') + "..." + std::string(119, 'a') + "c");
}
