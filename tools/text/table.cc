// Pads the cells of a table.
#include "tools/text/table.h"

#include <algorithm>

#include "tools/text/printable.h"

namespace stfs::tools {
namespace {

/// A wider cell shifts the following cells of its own row only, so one very long name does not push every
/// other row off the screen.
constexpr std::size_t kMaxWidth = 64;

}  // namespace

void Table::fit(std::span<const std::string> cells) {
  for (std::size_t column = 0; column < cells.size(); ++column) {
    const std::size_t width = display_width(cells[column]);
    if (width <= kMaxWidth) widths_[column] = std::max(widths_[column], width);
  }
}

void Table::print_row(std::ostream& out, std::span<const std::string> cells) const {
  std::string line;
  for (std::size_t column = 0; column < columns_.size(); ++column) {
    if (column > 0) line += "  ";
    const std::size_t width = display_width(cells[column]);
    const std::size_t padding = widths_[column] > width ? widths_[column] - width : 0;
    if (columns_[column] == Align::Right) line.append(padding, ' ');
    line += cells[column];
    if (columns_[column] == Align::Left && column + 1 < columns_.size()) line.append(padding, ' ');
  }
  line += '\n';
  out << line;
}

}  // namespace stfs::tools
