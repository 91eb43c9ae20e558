// Draws charts as SVG. Every colour is a class, so that one style sheet serves both backgrounds.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/base/utf8.h"
#include "tools/text/chart.h"
#include "tools/text/printable.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr double kWidth = 700;
constexpr double kMargin = 16;
constexpr double kLine = 20;        // the height of a row
constexpr double kCharacter = 6.6;  // the width of a character, at most
constexpr std::size_t kKindsInSvg = 5;

constexpr std::string_view kStyle =
    "  <style>\n"
    "    text { font: 12px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #24292f }\n"
    "    .title { font-weight: bold; font-size: 14px }\n"
    "    .end { text-anchor: end }\n"
    "    .middle { text-anchor: middle }\n"
    "    .back { fill: #ffffff }\n"
    "    .axis { stroke: #8c959f }\n"
    "    .k0 { fill: #0969da } .k1 { fill: #d4780a } .k2 { fill: #1a9c7b } .k3 { fill: #b0468f } .k4 { fill: "
    "#7d858e }\n"
    "    .h0 { fill: #e7ecf0 } .h1 { fill: #b6d7f2 } .h2 { fill: #66a9dd } .h3 { fill: #e0872a } .h4 { fill: "
    "#b02318 }\n"
    "    @media (prefers-color-scheme: dark) {\n"
    "      text { fill: #d0d7de }\n"
    "      .back { fill: #0d1117 }\n"
    "      .axis { stroke: #6e7681 }\n"
    "      .k0 { fill: #4493f8 } .k1 { fill: #f0a63a } .k2 { fill: #3fc4a0 } .k3 { fill: #e08cc4 } .k4 { "
    "fill: "
    "#8b949e }\n"
    "      .h0 { fill: #21262d } .h1 { fill: #1d3d5c } .h2 { fill: #2f74b5 } .h3 { fill: #e0872a } .h4 { "
    "fill: "
    "#ff6a5a }\n"
    "    }\n"
    "  </style>\n";

/// Draws from the top to the bottom.
class Canvas {
 public:
  /// @param kind  of the style's classes; empty: a plain text.
  void text(double x, std::string_view kind, std::string_view escaped) {
    body_ += fmt::format("  <text{} x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                         kind.empty() ? "" : fmt::format(" class=\"{}\"", kind), x, y_ + 14, escaped);
  }
  void box(double x, double y, double width, double height, std::string_view kind, std::string_view escaped) {
    body_ += fmt::format("  <rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\">",
                         kind, x, y, width, height);
    body_ += fmt::format("<title>{}</title></rect>\n", escaped);
  }
  void axis() {
    body_ += fmt::format("  <path class=\"axis\" d=\"M{} {:.1f}H{}\"/>\n", kMargin, y_, kWidth - kMargin);
  }
  void move_down(double pixels) { y_ += pixels; }
  [[nodiscard]] double y() const { return y_; }
  [[nodiscard]] const std::string& body() const { return body_; }

 private:
  double y_ = kMargin;
  std::string body_;
};

std::string shown(std::string_view label, double width) {
  return xml_text(shortened(printable_name(label), static_cast<std::size_t>(width / kCharacter)));
}

void draw_legend(Canvas& canvas, const std::vector<std::string>& words, std::string_view family) {
  double x = kMargin;
  canvas.move_down(4);
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string word = shortened(printable(words[at]), 90);
    const double width = 18 + 16 + kCharacter * 1.1 * static_cast<double>(display_width(word));
    if (x > kMargin && x + width > kWidth - kMargin) {
      x = kMargin;
      canvas.move_down(kLine);
    }
    canvas.box(x, canvas.y() + 4, 12, 12, fmt::format("{}{}", family, std::min(at, kKindsInSvg - 1)),
               xml_text(word));
    canvas.text(x + 18, "", xml_text(word));
    x += width;
  }
  canvas.move_down(kLine);
}

template <class Rows>
double value_width(const Rows& rows) {
  std::size_t most = 0;
  for (const auto& row : rows) most = std::max(most, display_width(printable(row.value)));
  return std::min(static_cast<double>(most) * 7.4 + 8, 230.0);
}

template <class Rows>
double label_width(const Rows& rows) {
  std::size_t most = 0;
  for (const auto& row : rows) most = std::max(most, display_width(printable_name(row.label)));
  return std::min(static_cast<double>(most) * 7.4 + 10, 250.0);
}

void draw(Canvas& canvas, const BarChart& chart) {
  const double left = kMargin + label_width(chart.bars);
  const double most = kWidth - kMargin - value_width(chart.bars) - left;
  double largest = 0;
  for (const Bar& bar : chart.bars)
    largest = std::max(largest, std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0));
  for (const Bar& bar : chart.bars) {
    canvas.text(kMargin, "", shown(bar.label, (left - kMargin) * 0.9));
    double x = left;
    for (std::size_t at = 0; at < bar.parts.size() && largest > 0; ++at) {
      if (bar.parts[at] <= 0) continue;
      constexpr double kLeastWidth = 1;  // so that a small part is seen
      const double width = std::max(bar.parts[at] / largest * most, kLeastWidth);
      const std::string title = fmt::format("{}: {}, {}", printable_name(bar.label),
                                            at < chart.kinds.size() ? chart.kinds[at] : "", bar.value);
      canvas.box(x, canvas.y() + 3, width, kLine - 6, fmt::format("k{}", std::min(at, kKindsInSvg - 1)),
                 xml_text(title));
      x += width;
    }
    canvas.text(kWidth - kMargin, "end", xml_text(bar.value));
    canvas.move_down(kLine);
  }
  draw_legend(canvas, chart.kinds, "k");
}

void draw(Canvas& canvas, const Histogram& chart) {
  constexpr double kHeight = 180;
  constexpr std::size_t kCaptionColumns = 90;
  constexpr double kLeastLabel = 70;  // pixels between two labels
  const double width = (kWidth - 2 * kMargin) / std::max(static_cast<double>(chart.counts.size()), 1.0);
  const double largest =
      chart.counts.empty() ? 0 : *std::max_element(chart.counts.begin(), chart.counts.end());
  canvas.move_down(kHeight);
  for (std::size_t at = 0; at < chart.counts.size(); ++at) {
    if (chart.counts[at] <= 0) continue;
    const double height = std::max(chart.counts[at] / largest * kHeight, 1.0);
    const std::string range =
        at + 1 < chart.edges.size() ? fmt::format("{} to {}: ", chart.edges[at], chart.edges[at + 1]) : "";
    canvas.box(kMargin + width * static_cast<double>(at), canvas.y() - height, std::max(width - 1, 1.0),
               height, "k0", xml_text(fmt::format("{}{:.0f}", range, chart.counts[at])));
  }
  canvas.axis();
  double next = 0;
  for (std::size_t at = 0; at < chart.edges.size(); ++at) {
    const double x = kMargin + width * static_cast<double>(at);
    if (x < next) continue;
    const bool is_right = x > kWidth - kMargin - kLeastLabel / 2;
    canvas.text(x, is_right ? "end" : at == 0 ? "" : "middle", xml_text(chart.edges[at]));
    next = x + (at == 0 ? 1.5 * kLeastLabel : kLeastLabel);
  }
  canvas.move_down(kLine);
  for (const std::string& line : wrapped(printable(chart.caption), kCaptionColumns)) {
    canvas.text(kMargin, "", xml_text(line));
    canvas.move_down(kLine);
  }
}

void draw(Canvas& canvas, const HeatMap& chart) {
  const double left = kMargin + label_width(chart.rows);
  const double right = kWidth - kMargin - value_width(chart.rows);
  const std::size_t cells = chart.rows.empty() ? 1 : std::max<std::size_t>(chart.rows[0].cells.size(), 1);
  const double width = std::min((right - left) / static_cast<double>(cells), 40.0);
  for (const HeatRow& row : chart.rows) {
    canvas.text(kMargin, "", shown(row.label, (left - kMargin) * 0.9));
    for (std::size_t at = 0; at < row.cells.size(); ++at) {
      if (!row.cells[at]) continue;
      const std::size_t step = std::min<std::size_t>(*row.cells[at], kKindsInSvg - 1);
      canvas.box(
          left + width * static_cast<double>(at), canvas.y() + 1, std::max(width - 1, 0.5), kLine - 2,
          fmt::format("h{}", step),
          xml_text(printable_name(row.label) + (step < chart.steps.size() ? ": " + chart.steps[step] : "")));
    }
    canvas.text(kWidth - kMargin, "end", xml_text(row.value));
    canvas.move_down(kLine);
  }
  canvas.text(left, "", xml_text(chart.first_column));
  canvas.text(left + width * static_cast<double>(cells), "end", xml_text(chart.last_column));
  canvas.move_down(kLine);
  draw_legend(canvas, chart.steps, "h");
}

}  // namespace

std::string xml_text(std::string_view text) {
  std::string escaped;
  const std::string shown = printable(text);
  for (std::string_view left = shown; !left.empty();) {
    const Utf8Character next = first_of_utf8(left);
    switch (next.character) {
      case U'&': escaped += "&amp;"; break;
      case U'<': escaped += "&lt;"; break;
      case U'>': escaped += "&gt;"; break;
      case U'"': escaped += "&quot;"; break;
      case U'\'': escaped += "&apos;"; break;
      case 0xfffe:  // XML allows no such characters
      case 0xffff: escaped += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(next.character)); break;
      default: escaped += left.substr(0, next.size_bytes);
    }
    left.remove_prefix(next.size_bytes);
  }
  return escaped;
}

std::string svg_of(std::span<const Chart> charts) {
  Canvas canvas;
  for (const Chart& chart : charts) {
    canvas.text(kMargin, "title", std::visit([](const auto& kind) { return xml_text(kind.title); }, chart));
    canvas.move_down(kLine + 8);
    std::visit([&](const auto& kind) { draw(canvas, kind); }, chart);
    canvas.move_down(kMargin);
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" "
             "height=\"{1:.0f}\" "
             "role=\"img\">\n",
             kWidth, canvas.y()) +
         std::string(kStyle) + fmt::format("  <rect class=\"back\" width=\"100%\" height=\"100%\"/>\n") +
         canvas.body() + "</svg>\n";
}

}  // namespace stfs::tools
