// The charts of stfs info, stfs diff and stfs verify, and the options that ask for them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/model.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diff_report.h"
#include "tools/cli/tensor_scan.h"
#include "tools/cli/value_spectrum.h"
#include "tools/text/chart.h"
#include "tools/text/layers.h"

namespace stfs::tools {

struct PlotRequest {
  bool is_wanted = false;
  std::string svg;
  bool is_replacing = false;

  [[nodiscard]] bool needs_charts() const { return is_wanted || !svg.empty(); }
};

/// Declares --plot and --svg. The caller declares --force.
/// @param picture  the subject of the picture, for the help.
void declare_plot_options(CommandLine& line, PlotRequest& request, const std::string& picture);

/// Returns the mistake in the options; nothing if there is none.
std::optional<std::string> mistake_in(const CommandLine& line, const PlotRequest& request);

/// Prints the charts and writes the picture, as requested.
/// @param models  all models of the charts. A user who may not read one of them may not read the picture.
Result<void> show_charts(std::span<const Chart> charts, const PlotRequest& request,
                         std::initializer_list<const Model*> models, Streams& streams);

/// Bytes by layer and dtype.
Chart chart_of_sizes(const Model& model);

/// The relative change ||A-B|| / ||A|| by kind of tensor and by layer.
Chart chart_of_changes(const DiffReport& report);

/// Collects the values of a model while its tensors are scanned.
class ValueCharts {
 public:
  ValueCharts(const Model& model, std::span<const std::uint32_t> tensors);
  /// For scan_tensors().
  void take(std::uint32_t tensor, const ValueSpectrum& spectrum);
  /// A histogram of the values, and a bar for each layer with outliers, NaNs and infinities.
  [[nodiscard]] std::vector<Chart> charts(std::span<const TensorScan> scans) const;

 private:
  std::vector<Layer> layers_;
  std::map<std::uint32_t, std::size_t> layer_of_tensor_;
  std::vector<std::uint64_t> outliers_;  // of each layer
  ValueSpectrum all_;
  std::size_t left_out_ = 0;  // tensors without a spectrum
};

}  // namespace stfs::tools
