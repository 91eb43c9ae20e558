// Draws charts with block characters. A bar ends in an eighth of a cell.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <ostream>
#include <sstream>

#include "tools/text/chart.h"
#include "tools/text/printable.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr std::size_t kKinds = 5;
constexpr std::array<const char*, kKinds> kShades = {"█", "▓", "▒", "░", "·"};
constexpr std::array<const char*, kKinds> kHeat = {"·", "░", "▒", "▓", "█"};
constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
constexpr std::array<const char*, 9> kLevels = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
// Colours of a terminal with 256 colours. Kinds differ for people who see no red or green; the heat's
// colours differ in their brightness too.
constexpr std::array<int, kKinds> kKindColors = {33, 214, 36, 168, 245};
constexpr std::array<int, kKinds> kHeatColors = {245, 74, 114, 214, 203};

class Pen {
 public:
  explicit Pen(bool has_color) : has_color_(has_color) {}
  [[nodiscard]] std::string colored(std::string_view text, int color) const {
    if (!has_color_ || text.empty()) return std::string(text);
    return fmt::format("\x1b[38;5;{}m{}\x1b[0m", color, text);
  }
  [[nodiscard]] std::string heading(std::string_view text) const {
    return has_color_ ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text);
  }
  [[nodiscard]] bool has_color() const { return has_color_; }

 private:
  bool has_color_;
};

std::string repeated(std::string_view text, std::size_t times) {
  std::string all;
  for (std::size_t time = 0; time < times; ++time) all += text;
  return all;
}

std::string padded_right(std::string text, std::size_t columns) {
  const std::size_t width = display_width(text);
  if (width < columns) text.append(columns - width, ' ');
  return text;
}

std::string padded_left(const std::string& text, std::size_t columns) {
  const std::size_t width = display_width(text);
  return std::string(width < columns ? columns - width : 0, ' ') + text;
}

/// Labels and values of the rows, and the columns that are left between them.
struct Margins {
  std::size_t label = 0;
  std::size_t value = 0;
  std::size_t middle = 0;
};

template <class Rows>
Margins margins_of(const Rows& rows, std::size_t columns) {
  constexpr std::size_t kSpaces = 4;  // two on each side
  Margins margins;
  for (const auto& row : rows) {
    margins.label = std::max(margins.label, display_width(printable_name(row.label)));
    margins.value = std::max(margins.value, display_width(printable(row.value)));
  }
  margins.label = std::min(margins.label, columns * 2 / 5);
  margins.value = std::min(margins.value, columns / 4);
  margins.middle = columns - margins.label - margins.value - kSpaces;
  return margins;
}

std::string legend_of(const std::vector<std::string>& words, const std::array<const char*, kKinds>& signs,
                      const std::array<int, kKinds>& colors, const ChartStyle& style) {
  const Pen pen(style.has_color);
  std::string lines;
  std::size_t used = 0;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::size_t kind = std::min(at, kKinds - 1);
    const std::string word = shortened(printable(words[at]), style.columns - 4);
    const std::size_t width = display_width(word) + 2;
    if (used > 0 && used + 2 + width > style.columns) {
      lines += '\n';
      used = 0;
    }
    lines += std::string(used > 0 ? 2 : 0, ' ') + pen.colored(signs[kind], colors[kind]) + " " + word;
    used += width + (used > 0 ? 2 : 0);
  }
  return lines + "\n";
}

// Bars.

/// Every part that is not zero has a cell, so that nobody overlooks one NaN.
std::string bar_text(const Bar& bar, double largest, std::size_t columns, const Pen& pen) {
  std::string text;
  const double scale = largest > 0 ? static_cast<double>(columns) / largest : 0;
  double end = 0;
  std::size_t drawn = 0;
  for (std::size_t at = 0; at < bar.parts.size() && drawn < columns; ++at) {
    if (bar.parts[at] <= 0) continue;
    end += bar.parts[at] * scale;
    const std::size_t kind = std::min(at, kKinds - 1);
    const bool is_solid = pen.has_color() || kind == 0;
    const auto later =
        static_cast<std::size_t>(std::count_if(bar.parts.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                                               bar.parts.end(), [](double part) { return part > 0; }));
    const bool is_last = later == 0;
    const std::string_view sign = is_solid ? kShades[0] : kShades[kind];
    auto whole = static_cast<std::size_t>(is_last && is_solid ? std::floor(end) : std::round(end));
    whole = std::min(std::max(whole, drawn), columns - std::min(columns, later));
    whole = std::max(whole, drawn);
    std::string part = repeated(sign, whole - drawn);
    const auto eighths = static_cast<std::size_t>((end - std::floor(end)) * 8);
    if (is_last && is_solid && whole < columns && eighths > 0) {
      part += kEighths[eighths];
      ++whole;
    }
    if (whole == drawn) {  // too small for its cells
      part = is_solid ? kEighths[1] : sign;
      ++whole;
    }
    drawn = whole;
    text += pen.colored(part, kKindColors[kind]);
  }
  return text + std::string(columns - drawn, ' ');
}

void print(const BarChart& chart, const ChartStyle& style, std::ostream& out) {
  const Pen pen(style.has_color);
  out << pen.heading(printable(chart.title)) << '\n';
  const Margins margins = margins_of(chart.bars, style.columns);
  double largest = 0;
  for (const Bar& bar : chart.bars)
    largest = std::max(largest, std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0));
  for (const Bar& bar : chart.bars) {
    out << padded_right(shortened(printable_name(bar.label), margins.label), margins.label) << "  "
        << bar_text(bar, largest, margins.middle, pen) << "  "
        << padded_left(shortened(printable(bar.value), margins.value), margins.value) << '\n';
  }
  const auto& signs = style.has_color ? std::array{"█", "█", "█", "█", "█"} : kShades;
  out << legend_of(chart.kinds, signs, kKindColors, style);
}

// The histogram.

/// Writes a label at its place, unless it would touch the one before.
void put_label(std::string& line, std::size_t at, const std::string& label, std::size_t columns) {
  const std::size_t begin = std::min(at, columns - std::min(columns, label.size()));
  if (begin < line.size() + (line.empty() ? 0 : 2)) return;
  line.append(begin - line.size(), ' ');
  line += label;
}

void print(const Histogram& chart, const ChartStyle& style, std::ostream& out) {
  constexpr std::size_t kLines = 10;
  constexpr std::size_t kMostOfBin = 6;
  const Pen pen(style.has_color);
  out << pen.heading(printable(chart.title)) << '\n';
  const double largest =
      chart.counts.empty() ? 0 : *std::max_element(chart.counts.begin(), chart.counts.end());
  const std::size_t bins = std::max<std::size_t>(chart.counts.size(), 1);
  const std::size_t of_bin = std::clamp<std::size_t>(style.columns / bins, 1, kMostOfBin);
  const std::size_t shown = std::min(bins, style.columns);
  for (std::size_t line = kLines; line-- > 0 && largest > 0;) {
    std::string text;
    for (std::size_t bin = 0; bin < shown; ++bin) {
      const double eighths = chart.counts[bin] / largest * kLines * 8;
      const double least = line == 0 && chart.counts[bin] > 0 ? 1 : 0;
      const double level = std::clamp(eighths - static_cast<double>(line * 8), least, 8.0);
      text += repeated(kLevels[static_cast<std::size_t>(std::round(level))], of_bin);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out << pen.colored(text, kKindColors[0]) << '\n';
  }
  out << repeated("─", shown * of_bin) << '\n';
  std::string labels;
  for (std::size_t edge = 0; edge < chart.edges.size() && edge <= shown; ++edge)
    put_label(labels, edge * of_bin, printable(chart.edges[edge]), shown * of_bin);
  out << labels << '\n';
  for (const std::string& line : wrapped(printable(chart.caption), style.columns)) out << line << '\n';
}

// The heat map.

void print(const HeatMap& chart, const ChartStyle& style, std::ostream& out) {
  constexpr std::size_t kMostOfCell = 4;
  const Pen pen(style.has_color);
  out << pen.heading(printable(chart.title)) << '\n';
  const Margins margins = margins_of(chart.rows, style.columns);
  const std::size_t cells = chart.rows.empty() ? 1 : std::max<std::size_t>(chart.rows[0].cells.size(), 1);
  const std::size_t merged = (cells + margins.middle - 1) / margins.middle;  // cells in one
  const std::size_t shown = (cells + merged - 1) / merged;
  const std::size_t of_cell = std::clamp<std::size_t>(margins.middle / shown, 1, kMostOfCell);
  for (const HeatRow& row : chart.rows) {
    out << padded_right(shortened(printable_name(row.label), margins.label), margins.label) << "  ";
    for (std::size_t at = 0; at < shown; ++at) {
      std::optional<unsigned> step;
      for (std::size_t cell = at * merged; cell < std::min((at + 1) * merged, row.cells.size()); ++cell)
        step = std::max(step, row.cells[cell]);
      const std::size_t shade = step ? std::min<std::size_t>(*step, kKinds - 1) : 0;
      out << (step ? pen.colored(repeated(kHeat[shade], of_cell), kHeatColors[shade])
                   : std::string(of_cell, ' '));
    }
    out << "  " << padded_left(shortened(printable(row.value), margins.value), margins.value) << '\n';
  }
  std::string axis;
  put_label(axis, 0, printable(chart.first_column), shown * of_cell);
  put_label(axis, shown * of_cell, printable(chart.last_column), shown * of_cell);
  if (!axis.empty()) out << std::string(margins.label + 2, ' ') << axis << '\n';
  out << legend_of(chart.steps, kHeat, kHeatColors, style);
}

}  // namespace

ChartStyle chart_style(std::ostream& out, bool is_terminal) {
  constexpr std::size_t kLeastColumns = 40;
  ChartStyle style;
  if (!is_terminal) return style;
  if (const std::size_t columns = terminal_columns(out); columns > 0)
    style.columns = std::max(columns, kLeastColumns);
  const char* const refused = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  const bool is_dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  style.has_color = (refused == nullptr || *refused == '\0') && !is_dumb;
  return style;
}

std::vector<std::string> wrapped(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool fits = !lines.empty() && display_width(lines.back()) + 1 + display_width(word) <= columns;
    if (fits) {
      lines.back() += " " + word;
    } else {
      lines.push_back(shortened(word, columns));
    }
  }
  return lines;
}

void print_chart(const Chart& chart, const ChartStyle& style, std::ostream& out) {
  std::visit([&](const auto& kind) { print(kind, style, out); }, chart);
}

}  // namespace stfs::tools
