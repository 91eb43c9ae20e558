// The charts: each fits its width, shows each part that is not zero, and holds no text that a terminal or a
// browser acts on.
#include "tools/text/chart.h"

#include <cstdlib>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tools/text/printable.h"
#include "tools/text/table.h"

using namespace stfs;
using namespace stfs::tools;
using test::contains;

namespace {

const std::string kHostile = "a\x1b[31m\xe2\x80\xae\n<script>&\"'";

BarChart bars() {
  return {.title = "bytes",
          .kinds = {"BF16", "F32"},
          .bars = {{"first", {100, 1}, "101 B"}, {"second", {0, 0}, "0 B"}, {kHostile, {50, 0}, "50 B"}}};
}

Histogram histogram() {
  return {.title = "values",
          .counts = {1, 1000, 2000, 0, 1},
          .edges = {"1", "2", "4", "8", "16", "32"},
          .caption = "a caption of some words that does not fit in forty columns"};
}

HeatMap heat_map(std::size_t cells) {
  HeatMap map{.title = "change",
              .first_column = "layer 0",
              .last_column = "7",
              .steps = {"equal", "low", "middle", "high", "highest"},
              .rows = {}};
  HeatRow row{.label = kHostile, .cells = std::vector<std::optional<unsigned>>(cells, 0U), .value = "50 %"};
  row.cells[0] = std::nullopt;
  row.cells.back() = 4;
  map.rows.push_back(row);
  return map;
}

std::vector<Chart> all_charts() {
  return {bars(), histogram(), heat_map(8), heat_map(500), BarChart{}, Histogram{}, HeatMap{}};
}

std::string printed(const Chart& chart, ChartStyle style = {}) {
  std::setlocale(LC_CTYPE, "C.UTF-8");
  std::ostringstream out;
  print_chart(chart, style, out);
  return out.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("a chart fits into the columns that it gets", "[tools][chart]") {
  for (const std::size_t columns : {40U, 80U, 81U, 200U}) {
    for (const Chart& chart : all_charts()) {
      for (const std::string& line : lines_of(printed(chart, {.columns = columns}))) {
        CAPTURE(columns, line);
        CHECK(display_width(line) <= columns);
      }
    }
  }
}

TEST_CASE("a wide terminal gets a wide chart", "[tools][chart]") {
  const auto width = [](std::size_t columns) {
    return display_width(lines_of(printed(bars(), {.columns = columns}))[1]);
  };
  CHECK(width(80) == 80);
  CHECK(width(200) == 200);
}

TEST_CASE("each part that is not zero can be seen", "[tools][chart]") {
  const auto lines = lines_of(printed(bars()));
  CHECK(contains(lines[1], "█"));
  CHECK(contains(lines[1], "▓"));
  CHECK_FALSE(contains(lines[2], "█"));
  CHECK(contains(lines.back(), "█ BF16  ▓ F32"));
  const std::string shown = printed(histogram());
  CHECK(contains(lines_of(shown)[10], "▁"));
  CHECK(contains(shown, "█"));
}

TEST_CASE("cells that share a column show the highest step", "[tools][chart]") {
  const auto lines = lines_of(printed(heat_map(500)));
  CHECK(contains(lines[1], "█"));
  CHECK(contains(lines[1], "·"));
}

TEST_CASE("a chart has colours only if its style has", "[tools][chart]") {
  for (const Chart& chart : all_charts()) CHECK_FALSE(contains(printed(chart), "\x1b"));
  CHECK(contains(printed(bars(), {.columns = 80, .has_color = true}), "\x1b[38;5;"));
}

TEST_CASE("the style has the terminal's width, and 80 columns elsewhere", "[tools][chart]") {
  std::ostringstream out;
  CHECK(chart_style(out, true).columns == 80);
  set_terminal_columns(out, 200);
  CHECK(chart_style(out, true).columns == 200);
  CHECK(chart_style(out, false).columns == 80);
  set_terminal_columns(out, 7);
  CHECK(chart_style(out, true).columns == 40);
}

TEST_CASE("NO_COLOR, a dumb terminal and a file get no colours", "[tools][chart]") {
  std::ostringstream out;
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm-256color", 1);
  CHECK(chart_style(out, true).has_color);
  CHECK_FALSE(chart_style(out, false).has_color);
  ::setenv("NO_COLOR", "", 1);
  CHECK(chart_style(out, true).has_color);
  ::setenv("NO_COLOR", "0", 1);
  CHECK_FALSE(chart_style(out, true).has_color);
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  CHECK_FALSE(chart_style(out, true).has_color);
}

TEST_CASE("a hostile name is only text in a chart and in its picture", "[tools][chart]") {
  for (const bool has_color : {false, true}) {
    const std::string shown = printed(bars(), {.columns = 200, .has_color = has_color});
    CHECK(contains(shown, "a\\x1b[31m\\u202e\\n<script>&\"'"));
    CHECK_FALSE(contains(shown, "\x1b[31m"));
    CHECK_FALSE(contains(shown, "\xe2\x80\xae"));
  }
  const std::string svg = svg_of(all_charts());
  CHECK(contains(svg, "a\\x1b[31m\\u202e\\n&lt;script&gt;&amp;&quot;&apos;"));
  for (const char* bad : {"<script", "\x1b", "\xe2\x80\xae"}) CHECK_FALSE(contains(svg, bad));
}

TEST_CASE("XML gets no character that it forbids", "[tools][chart]") {
  CHECK(xml_text("a<b>&'\"") == "a&lt;b&gt;&amp;&apos;&quot;");
  CHECK(xml_text("\xef\xbf\xbe\xef\xbf\xbf") == "\\ufffe\\uffff");
  CHECK(xml_text(std::string_view("\0\x01\xff", 3)) == "\\x00\\x01\\xff");
  CHECK(xml_text("\xc3\xa9\xe6\xbc\xa2") == "\xc3\xa9\xe6\xbc\xa2");
  const std::string dots(4'000'000, '.');  // in linear time
  CHECK(xml_text(dots) == dots);
}

TEST_CASE("a picture has colours for a light and for a dark background", "[tools][chart]") {
  const std::string svg = svg_of(std::vector<Chart>{bars()});
  CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 700 "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(contains(svg, "@media (prefers-color-scheme: dark)"));
}
