// The pictures of stfs info, diff and verify, and of charts with each odd property, stay as they are. A
// person has looked at each of them. After a change: look at them again (the same verb with --plot and
// --svg), and then write the new sums here.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "core/base/checksum.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/tool_run.h"
#include "tests/tools/diff_models.h"
#include "tools/cli/verb.h"
#include "tools/text/chart.h"

using namespace stfs;
using namespace stfs::tools;
using test::diff_archive;
using test::DiffTensor;
using test::floats_of;
using test::run_verb;

namespace {

/// A short sum of a picture.
std::string sum_of(const std::string& picture) {
  Checksum sum;
  sum.update(std::as_bytes(std::span(picture)));
  return sum.hex().substr(0, 16);
}

constexpr int kPictureLayers = 150;

/// The values of a layer; in the second model they differ by this part.
std::vector<float> layer_values(int layer, float change) {
  std::vector<float> values;
  for (int at = 1; at <= 16; ++at)
    values.push_back(static_cast<float>((at % 3 == 0 ? -1 : 1) * at * std::exp2(layer % 40 - 20)) *
                     (1 + change));
  return values;
}

/// More layers, kinds and dtypes than a chart shows one by one, and each step of change.
std::string picture_model(bool is_second) {
  constexpr std::array kChanges = {0.0F, 0.0005F, 0.005F, 0.05F, 0.5F, 0.0F, 0.011F};
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<DiffTensor> tensors;
  for (int layer = 0; layer < kPictureLayers; ++layer) {
    const float change = is_second ? kChanges[static_cast<std::size_t>(layer) % kChanges.size()] : 0;
    tensors.push_back({fmt::format("model.layers.{}.attn.w", layer), "F32", "[16]",
                       floats_of(layer_values(layer, change))});
    auto outlying = std::vector<float>(100, 1.0F + (layer == 7 ? change : 0.0F));
    outlying[0] = layer % 10 == 3 ? 1000.0F : 1.0F;
    outlying[1] = layer == 20 ? kNan : layer == 21 ? kInfinity : layer == 22 ? 0.0F : 1.0F;
    tensors.push_back({fmt::format("model.layers.{}.mlp.w", layer), "F32", "[100]", floats_of(outlying)});
    tensors.push_back({fmt::format("model.layers.{}.scale", layer), "BF16", "[2]", "abcd"});
  }
  tensors.push_back({"lm_head.weight", "F16", "[4]", is_second ? "bbbbbbbb" : "bbbbbbcb"});
  tensors.push_back({"from.nothing", "F32", "[2]", floats_of({is_second ? 1.0F : 0.0F, 0})});
  tensors.push_back({"ids", "I64", "[2]", std::string(16, 'i')});
  tensors.push_back({"mask", "BOOL", "[3]", std::string(3, '\1')});
  tensors.push_back({"eight", "F8_E4M3", "[5]", "abcde"});
  for (int at = 0; at < 45; ++at)
    tensors.push_back({fmt::format("extra{}", at), "U8", "[4]", is_second && at % 4 == 0 ? "wxyz" : "wxya"});
  return diff_archive(tensors);
}

struct PictureModels {
  test::TemporaryDirectory directory;
  std::string a = directory.write("a.safetensors", picture_model(false));
  std::string b = directory.write("b.safetensors", picture_model(true));
  std::string svg = directory / "picture.svg";

  /// Returns the sums of the text without colours, of the text with colours, and of the picture.
  std::vector<std::string> sums(int (*verb)(const Arguments&, Streams&), Arguments arguments) const {
    arguments.insert(arguments.end(), {"--plot", "--svg", svg, "--force"});
    const auto plain = run_verb(verb, arguments);
    const auto coloured = run_verb(verb, arguments, test::Output::Terminal);
    CHECK(plain.err.empty());
    const auto drawn = [&](std::string out) {
      const std::string place = directory.path().string();
      for (std::size_t at = out.find(place); at != out.npos; at = out.find(place))
        out.erase(at, place.size());
      return sum_of(out);
    };
    return {drawn(plain.out), drawn(coloured.out), sum_of(test::content_of(svg))};
  }
};

std::vector<Chart> odd_charts() {
  BarChart many{.title = "more kinds than colours", .kinds = {"a", "b", "c", "d", "e", "f"}, .bars = {}};
  for (int at = 0; at < 3; ++at)
    many.bars.push_back({fmt::format("a label that is longer than most labels are {}", at),
                         {1.0 * at, 10, 0.001, 3, 100.0 * at, 2},
                         fmt::format("{} B", at)});
  many.bars.push_back({"nothing", {0, 0, 0, 0, 0, 0}, ""});
  Histogram histogram{.title = "counts", .counts = {}, .edges = {}, .caption = "a caption"};
  for (int at = 0; at < 90; ++at) histogram.counts.push_back(at % 17 == 0 ? 0 : std::exp2(at % 23));
  for (int at = 0; at <= 90; ++at) histogram.edges.push_back(fmt::format("{:.2g}", std::exp2(at - 40)));
  HeatMap map{.title = "steps",
              .first_column = "layer 3",
              .last_column = "302",
              .steps = {"equal", "low", "middle", "high", "highest"},
              .rows = {}};
  for (unsigned row = 0; row < 4; ++row) {
    HeatRow next{.label = fmt::format("row {}", row), .cells = {}, .value = fmt::format("{} %", row)};
    for (unsigned at = 0; at < 300; ++at)
      next.cells.push_back(at % 7 == row ? std::nullopt : std::optional((at / 3 + row) % 5));
    map.rows.push_back(next);
  }
  HeatMap narrow{
      .title = "one column", .first_column = "", .last_column = "", .steps = map.steps, .rows = {}};
  narrow.rows.push_back({.label = "only", .cells = {2U}, .value = "2 %"});
  return {many, histogram, map, narrow,
          Histogram{.title = "one", .counts = {5}, .edges = {"1", "2"}, .caption = {}}};
}

}  // namespace

TEST_CASE("the pictures of info, diff and verify stay as a person has seen them", "[tools][pictures]") {
  const PictureModels models;
  CHECK(models.sums(tools::info, {models.a}) ==
        std::vector<std::string>{"8aae8e97e9b92732", "405d39735bcbb1d8", "f4390e6af7cb3bdc"});
  CHECK(models.sums(tools::diff, {models.a, models.b}) ==
        std::vector<std::string>{"3eced300d85996f2", "e99b0d32af9c01b1", "cca37f801deff6bb"});
  CHECK(models.sums(tools::verify, {models.a}) ==
        std::vector<std::string>{"38022ae83b4440fb", "5c651db9c35a2a4a", "ed33af176147dadc"});
}

TEST_CASE("charts of each kind stay as a person has seen them", "[tools][pictures]") {
  std::vector<std::string> sums;
  for (const ChartStyle style : {ChartStyle{.columns = 40}, ChartStyle{.columns = 80, .has_color = true},
                                 ChartStyle{.columns = 200}}) {
    std::ostringstream out;
    for (const Chart& chart : odd_charts()) print_chart(chart, style, out);
    sums.push_back(sum_of(out.str()));
  }
  sums.push_back(sum_of(svg_of(odd_charts())));
  CHECK(sums == std::vector<std::string>{"1bb4f223fc450eb0", "c248a3c415722ea5", "f702bf55a6f40135",
                                         "88b9d918b290c3a3"});
}

TEST_CASE("a map of changes says how much the largest change is", "[tools][pictures]") {
  const test::TemporaryDirectory directory;
  const auto a = directory.write("a.safetensors", diff_archive({{"w", "F32", "[1]", floats_of({1})}}));
  for (const auto& [value, shown] :
       std::vector<std::pair<float, std::string>>{{1.9F, " 90 %"}, {1.025F, " 2.5 %"}}) {
    const auto b = directory.write("b.safetensors", diff_archive({{"w", "F32", "[1]", floats_of({value})}}));
    CHECK(test::contains(run_verb(tools::diff, {"--plot", a, b}).out, shown));
  }
}
