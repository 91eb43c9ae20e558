// Tables fit the terminal that they are printed to.
#include "tools/text/table.h"

#include <array>
#include <clocale>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tools/text/printable.h"

using stfs::tools::Table;

namespace {

using Row = std::array<std::string, 3>;

std::string printed(std::size_t columns) {
  const std::vector<Row> rows = {{"model.layers.10.self_attn.q_proj.weight", "BF16", "1"},
                                 {"lm_head.weight", "F32", "1,000"}};
  std::ostringstream out;
  if (columns > 0) stfs::tools::set_terminal_columns(out, columns);
  Table table({Table::Align::Left, Table::Align::Left, Table::Align::Right});
  table.print(out, rows, [](const Row& row) { return row; });
  return out.str();
}

}  // namespace

TEST_CASE("a table that goes to no terminal shortens nothing", "[tools][table]") {
  CHECK(printed(0) ==
        "model.layers.10.self_attn.q_proj.weight  BF16      1\n"
        "lm_head.weight                           F32   1,000\n");
  CHECK(printed(52) == printed(0));
}

TEST_CASE("the rows of a table fit the terminal", "[tools][table]") {
  for (const std::size_t columns : {30U, 40U, 51U}) {
    std::istringstream lines(printed(columns));
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(columns, line);
      CHECK(line.size() == columns);
    }
  }
  CHECK(printed(40).ends_with("lm_head.weight               F32   1,000\n"));
  CHECK(printed(40).find("q_proj.weight  BF16      1\n") != std::string::npos);
}

TEST_CASE("a terminal that is too narrow gets rows that are as narrow as they can be", "[tools][table]") {
  CHECK(printed(5).find("...") != std::string::npos);
}

TEST_CASE("shortened keeps the beginning and more of the end", "[tools][table]") {
  using stfs::tools::shortened;
  CHECK(shortened("model.layers.0", 14) == "model.layers.0");
  CHECK(shortened("model.layers.10.self_attn.q_proj.weight", 20) == "model..._proj.weight");
  CHECK(shortened("abcdef", 3) == "...");
  CHECK(shortened("abcdef", 1) == ".");
  std::setlocale(LC_CTYPE, "C.UTF-8");
  const std::string wide = "\u65e5\u672c\u8a9e\u65e5\u672c\u8a9e\u65e5\u672c\u8a9e";  // of 18 columns
  for (std::size_t columns = 0; columns < 18; ++columns) {
    CAPTURE(columns);
    CHECK(stfs::tools::display_width(shortened(wide, columns)) <= columns);
  }
}
