// Charts of a model: for a terminal, with Unicode's block characters, and as an SVG picture.
//
// Labels may be names from untrusted files. The functions here escape all texts: a chart holds them as they
// are.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace stfs::tools {

/// One bar, made of parts of several kinds.
struct Bar {
  std::string label;
  std::vector<double> parts;  // one for each kind of the chart
  std::string value;          // the text behind the bar
};

struct BarChart {
  std::string title;
  std::vector<std::string> kinds;  // for the legend; a part of the fifth kind and later ones look alike
  std::vector<Bar> bars;
};

struct Histogram {
  std::string title;
  std::vector<double> counts;
  std::vector<std::string> edges;  // the lower edge of each count, and the upper edge of the last count
  std::string caption;             // below the axis
};

struct HeatRow {
  std::string label;
  std::vector<std::optional<unsigned>> cells;  // steps from 0 to 4; nothing: an empty cell
  std::string value;                           // the text behind the cells
};

struct HeatMap {
  std::string title;
  std::string first_column;  // the labels below the cells
  std::string last_column;
  std::vector<std::string> steps;  // five, for the legend
  std::vector<HeatRow> rows;       // all with the same number of cells
};

using Chart = std::variant<BarChart, Histogram, HeatMap>;

struct ChartStyle {
  std::size_t columns = 80;
  bool has_color = false;
};

/// Colours only on a terminal, and neither with NO_COLOR (https://no-color.org) nor on a dumb terminal. The
/// width is the terminal's; 80 elsewhere.
ChartStyle chart_style(std::ostream& out, bool is_terminal);

/// Prints a chart that fits into `style.columns`, of which there are at least 40.
void print_chart(const Chart& chart, const ChartStyle& style, std::ostream& out);

/// Returns a picture of the charts, one below the other: 700 pixels wide, with colours for a light and a dark
/// background.
std::string svg_of(std::span<const Chart> charts);

/// Breaks a printable text into lines between words. A longer word is shortened.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns);

/// Returns the text with escapes for a terminal, and then for XML.
std::string xml_text(std::string_view text);

}  // namespace stfs::tools
