#include "tools/cli/model_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <ostream>
#include <set>

#include "core/model/common_mode.h"
#include "tools/cli/output_path.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

/// The charts of a model with more layers join neighbours.
constexpr std::size_t kMostLayers = 40;
constexpr std::size_t kMostKinds = 40;  // rows of a heat map

std::vector<std::uint32_t> all_positions(const Model& model) {
  std::vector<std::uint32_t> positions(model.tensors().size());
  std::iota(positions.begin(), positions.end(), 0U);
  return positions;
}

/// A row of the map of changes.
struct Kind {
  std::map<std::uint64_t, double> by_layer;
  double largest = 0;
};

/// Nothing for tensors that were not compared as numbers.
std::optional<double> relative_change(const TensorComparison& comparison) {
  if (comparison.failure) return std::nullopt;
  if (!comparison.is_different) return 0;
  if (!comparison.statistics) return std::nullopt;
  const ElementStatistics& statistics = *comparison.statistics;
  if (statistics.norm_difference() == 0) return std::nextafter(0.0, 1.0);  // NaN, or 0 and -0
  return statistics.norm_a() > 0 ? statistics.norm_difference() / statistics.norm_a() : HUGE_VAL;
}

std::string change_text(double change) {
  if (change == 0) return "equal";
  if (std::isinf(change)) return "from 0";
  return 100 * change < 10 ? fmt::format("{:.2g} %", 100 * change) : fmt::format("{:.0f} %", 100 * change);
}

/// The bounds of steps 2, 3 and 4; step 1 begins above 0.
constexpr std::array kStepBounds = {0.001, 0.01, 0.1};

unsigned step_of(double change) {
  if (change == 0) return 0;
  return 1 + static_cast<unsigned>(std::ranges::count_if(kStepBounds, [&](double b) { return change >= b; }));
}

HeatRow row_of_kind(const std::string& label, const Kind& kind, std::uint64_t first, std::uint64_t joined,
                    std::size_t cells) {
  HeatRow row{.label = label,
              .cells = std::vector<std::optional<unsigned>>(cells),
              .value = change_text(kind.largest)};
  for (const auto& [layer, change] : kind.by_layer) {
    auto& cell = row.cells[static_cast<std::size_t>((layer - first) / joined)];
    cell = std::max(cell, std::optional(step_of(change)));
  }
  return row;
}

/// The kinds by the name without the layer, and by whether there is a layer.
using Kinds = std::map<std::pair<std::string, bool>, Kind>;

/// Returns the kMostKinds that changed most: those with layers before those without, by name.
std::vector<const Kinds::value_type*> most_changed(const Kinds& kinds) {
  std::vector<const Kinds::value_type*> shown;
  for (const bool is_layered : {true, false}) {
    for (const auto& kind : kinds) {
      if (kind.first.second == is_layered) shown.push_back(&kind);
    }
  }
  if (shown.size() <= kMostKinds) return shown;
  std::vector<std::size_t> order(shown.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t at) { return shown[at]->second.largest; });
  order.resize(kMostKinds);
  std::ranges::sort(order);
  for (std::size_t at = 0; at < kMostKinds; ++at) shown[at] = shown[order[at]];  // order[at] >= at
  shown.resize(kMostKinds);
  return shown;
}

/// Steps of a spectrum that are joined to one count of the histogram.
struct Joining {
  std::size_t first = 0;
  std::size_t steps = 1;
  std::size_t counts = 0;
};

Joining joining_of(const ValueSpectrum& spectrum) {
  constexpr std::size_t kMostCounts = 64;
  // Fewer values than a hundred thousandth at the left would make the axis long and the rest narrow.
  constexpr double kLeftOut = 1e-5;
  const auto& counts = spectrum.counts();
  const std::uint64_t all = spectrum.values() - spectrum.zeros();
  std::uint64_t seen = 0;
  std::size_t first = 0;
  while (first + 1 < counts.size() &&
         static_cast<double>(seen + counts[first]) <= kLeftOut * static_cast<double>(all))
    seen += counts[first++];
  std::size_t last = counts.size() - 1;
  while (last > first && counts[last] == 0) --last;
  Joining joining{.first = first};
  while ((last - first) / joining.steps + 1 > kMostCounts) joining.steps *= 2;
  joining.first = first / joining.steps * joining.steps;
  joining.counts = (last - joining.first) / joining.steps + 1;
  return joining;
}

Chart histogram_of(const ValueSpectrum& spectrum, std::size_t left_out) {
  Histogram chart{.title = "values by magnitude, logarithmic", .counts = {}, .edges = {}, .caption = {}};
  const Joining joining = joining_of(spectrum);
  for (std::size_t count = 0; count < joining.counts; ++count) {
    const std::size_t step = joining.first + count * joining.steps;
    const auto* const from = spectrum.counts().data() + (count == 0 ? 0 : step);
    const auto* const end = spectrum.counts().data() + std::min(step + joining.steps, ValueSpectrum::kSteps);
    chart.counts.push_back(static_cast<double>(std::accumulate(from, end, std::uint64_t{0})));
    chart.edges.push_back(fmt::format("{:.2g}", ValueSpectrum::least_of(step)));
  }
  chart.edges.push_back(
      fmt::format("{:.2g}", ValueSpectrum::least_of(std::min(joining.first + joining.counts * joining.steps,
                                                             ValueSpectrum::kSteps - 1))));
  const double values = std::max(static_cast<double>(spectrum.values()), 1.0);
  chart.caption =
      fmt::format("{}; {:.1f} % zeros, {:.1f} % negative; largest {:.4g}, root mean square {:.4g}",
                  counted(spectrum.values(), "value"), 100 * static_cast<double>(spectrum.zeros()) / values,
                  100 * static_cast<double>(spectrum.negative()) / values, spectrum.largest(),
                  spectrum.root_mean_square());
  if (left_out > 0)
    chart.caption += fmt::format("; {} without floating-point values", counted(left_out, "tensor"));
  return chart;
}

}  // namespace

void declare_plot_options(CommandLine& line, PlotRequest& request, const std::string& picture) {
  line.flag(request.is_wanted, "--plot", fmt::format("Draw {}.", picture));
  line.file(request.svg, "--svg", "FILE", "Write the same picture to FILE.");
}

std::optional<std::string> mistake_in(const CommandLine& line, const PlotRequest& request) {
  if (line.has("--svg") && request.svg.empty()) return "--svg: the name of FILE is empty";
  return std::nullopt;
}

Result<void> show_charts(std::span<const Chart> charts, const PlotRequest& request,
                         std::initializer_list<const Model*> models, Streams& streams) {
  if (request.is_wanted) {
    const ChartStyle style = chart_style(streams.out, streams.out_is_terminal);
    for (const Chart& chart : charts) {
      if (&chart != &charts.front()) streams.out << '\n';
      print_chart(chart, style, streams.out);
    }
  }
  if (request.svg.empty()) return {};
  NewFileMode mode;
  for (const Model* model : models) mode = strictest(mode, common_mode(*model));
  auto file = create_output(request.svg, **models.begin(), request.is_replacing, mode);
  RETURN_IF_ERROR(file);
  const std::string svg = svg_of(charts);
  RETURN_IF_ERROR(file->append(std::as_bytes(std::span(svg))));
  return file->finish();
}

Chart chart_of_sizes(const Model& model) {
  const TensorIndex& tensors = model.tensors();
  std::map<std::string_view, std::uint64_t> sizes;
  for (std::uint32_t at = 0; at < tensors.size(); ++at)
    sizes[name_of(tensors[at].dtype)] += tensors[at].data.size_bytes;
  std::vector<std::pair<std::string_view, std::uint64_t>> kinds(sizes.begin(), sizes.end());
  std::ranges::stable_sort(kinds, [](const auto& a, const auto& b) { return a.second > b.second; });
  BarChart chart{.title = "bytes by layer and dtype", .kinds = {}, .bars = {}};
  for (const auto& [name, size_bytes] : kinds)
    chart.kinds.push_back(fmt::format("{} {}", name, human_size(size_bytes)));
  for (const Layer& layer : layers_of(tensors, all_positions(model), kMostLayers)) {
    Bar bar{.label = layer.label, .parts = std::vector<double>(kinds.size()), .value = {}};
    std::uint64_t size_bytes = 0;
    for (const std::uint32_t at : layer.tensors) {
      const auto kind =
          std::ranges::find(kinds, name_of(tensors[at].dtype), [](const auto& k) { return k.first; });
      bar.parts[static_cast<std::size_t>(kind - kinds.begin())] +=
          static_cast<double>(tensors[at].data.size_bytes);
      size_bytes += tensors[at].data.size_bytes;
    }
    bar.value = human_size(size_bytes);
    chart.bars.push_back(std::move(bar));
  }
  return chart;
}

Chart chart_of_changes(const DiffReport& report) {
  constexpr std::uint64_t kMostCells = 256;
  Kinds kinds;
  std::set<std::string> stems;
  std::uint64_t first = ~std::uint64_t{0};
  std::uint64_t last = 0;
  const auto tensor_name = [&](std::size_t at) {
    return report.models.a.tensors()[report.difference.pairs[at].a].name;
  };
  for (std::size_t at = 0; at < report.comparisons.size(); ++at) {
    if (const LayerName name = layer_of(tensor_name(at)); name.number) stems.insert(name.stem);
  }
  for (std::size_t at = 0; at < report.comparisons.size(); ++at) {
    const auto change = relative_change(report.comparisons[at]);
    if (!change) continue;
    const LayerName name = layer_of(tensor_name(at));
    if (name.number) {
      first = std::min(first, *name.number);
      last = std::max(last, *name.number);
    }
    const std::string label = !name.number        ? std::string(tensor_name(at))
                              : stems.size() == 1 ? name.rest
                                                  : fmt::format("{}.*.{}", name.stem, name.rest);
    Kind& kind = kinds[{short_label(label), name.number.has_value()}];
    double& known = kind.by_layer[name.number.value_or(0)];
    known = std::max(known, *change);
    kind.largest = std::max(kind.largest, *change);
  }
  if (first > last) first = 0;
  const std::uint64_t joined = (last - first) / kMostCells + 1;
  const auto cells = static_cast<std::size_t>((last - first) / joined + 1);
  HeatMap chart{.title = "relative change by layer: ||A-B|| / ||A||",
                .first_column = stems.empty() ? "" : fmt::format("layer {}", first),
                .last_column = stems.empty() || first == last ? "" : std::to_string(last),
                .steps = {"equal", "below 0.1 %", "below 1 %", "below 10 %", "10 % and more"},
                .rows = {}};
  const auto shown = most_changed(kinds);
  for (const Kinds::value_type* kind : shown) {
    const auto& [label, is_layered] = kind->first;
    chart.rows.push_back(row_of_kind(label, kind->second, is_layered ? first : 0, joined, cells));
  }
  if (kinds.size() > shown.size())
    chart.title += fmt::format(", without {} that changed less", counted(kinds.size() - shown.size(), "row"));
  return chart;
}

ValueCharts::ValueCharts(const Model& model, std::span<const std::uint32_t> tensors)
    : layers_(layers_of(model.tensors(), tensors, kMostLayers)), outliers_(layers_.size()) {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    for (const std::uint32_t tensor : layers_[layer].tensors) layer_of_tensor_[tensor] = layer;
  }
  for (const std::uint32_t tensor : tensors)
    left_out_ += has_spectrum(model.tensors()[tensor].dtype) ? 0U : 1U;
}

void ValueCharts::take(std::uint32_t tensor, const ValueSpectrum& spectrum) {
  all_ += spectrum;
  outliers_[layer_of_tensor_.at(tensor)] += spectrum.outliers();
}

std::vector<Chart> ValueCharts::charts(std::span<const TensorScan> scans) const {
  std::vector<NonFinite> non_finite(layers_.size());
  for (const TensorScan& scan : scans) {
    if (!scan.failure) non_finite[layer_of_tensor_.at(scan.tensor)] += scan.non_finite;
  }
  BarChart bars{.title = "outliers, NaNs and infinities by layer",
                .kinds = {fmt::format("outliers (from {:.0f} times the root mean square of the tensor on)",
                                      ValueSpectrum::kOutlierTimes),
                          "NaN", "infinite"},
                .bars = {}};
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const auto [nan, infinite] = non_finite[layer];
    bars.bars.push_back(
        {.label = layers_[layer].label,
         .parts = {static_cast<double>(outliers_[layer]), static_cast<double>(nan),
                   static_cast<double>(infinite)},
         .value = fmt::format("{}  {}  {}", grouped(outliers_[layer]), grouped(nan), grouped(infinite))});
  }
  return {histogram_of(all_, left_out_), std::move(bars)};
}

}  // namespace stfs::tools
