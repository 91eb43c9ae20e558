// Pads the cells of a table.
#include "tools/text/table.h"

#include <algorithm>

#include "tools/text/printable.h"

namespace stfs::tools {
namespace {

/// A wider cell shifts only the following cells of its row, so one very long name does not push every other
/// row off the screen.
constexpr std::size_t kMaxWidth = 64;

/// A column is not made narrower than this.
constexpr std::size_t kMinWidth = 12;
constexpr std::size_t kBetween = 2;  // spaces between two columns

/// Returns the size in bytes of the first character of a printable text.
std::size_t first_character(std::string_view text) {
  std::size_t size_bytes = 1;
  while (size_bytes < text.size() && (static_cast<unsigned char>(text[size_bytes]) & 0xc0U) == 0x80U) {
    ++size_bytes;
  }
  return size_bytes;
}

/// Returns the place in a stream that stores the columns of its terminal; the value 0: no terminal.
int columns_place() {
  static const int place = std::ios_base::xalloc();
  return place;
}

}  // namespace

void set_terminal_columns(std::ostream& out, std::size_t columns) {
  out.iword(columns_place()) = static_cast<long>(columns);
}

std::size_t terminal_columns(std::ostream& out) {
  return static_cast<std::size_t>(out.iword(columns_place()));
}

std::string shortened(std::string_view text, std::size_t columns) {
  constexpr std::string_view kGap = "...";
  const std::size_t width = display_width(text);
  if (width <= columns) return std::string(text);
  if (columns <= kGap.size()) return std::string(kGap.substr(0, columns));
  const std::size_t kept = columns - kGap.size();
  const std::size_t before = kept / 3;
  const std::size_t end_at = width - (kept - before);
  std::string begin;
  std::size_t at = 0;  // in columns
  while (at < end_at) {
    const std::string_view next = text.substr(0, first_character(text));
    at += display_width(next);
    if (at <= before) begin += next;
    text.remove_prefix(next.size());
  }
  return begin + std::string(kGap) + std::string(text);
}

void Table::shrink_to_terminal(std::ostream& out) {
  const std::size_t columns = terminal_columns(out);
  is_cutting_ = columns > 0;
  if (!is_cutting_) return;
  std::size_t all = (columns_.size() - 1) * kBetween;
  for (const std::size_t width : widths_) all += width;
  while (all > columns) {
    std::size_t widest = columns_.size();
    for (std::size_t at = 0; at < columns_.size(); ++at) {
      const bool can_shrink = columns_[at] == Align::Left && widths_[at] > kMinWidth;
      if (can_shrink && (widest == columns_.size() || widths_[at] > widths_[widest])) widest = at;
    }
    if (widest == columns_.size()) return;
    widths_[widest] -= 1;
    all -= 1;
  }
}

void Table::fit(std::span<const std::string> cells) {
  for (std::size_t column = 0; column < cells.size(); ++column) {
    const std::size_t width = display_width(cells[column]);
    if (width <= kMaxWidth) widths_[column] = std::max(widths_[column], width);
  }
}

void Table::print_row(std::ostream& out, std::span<const std::string> cells) const {
  std::string line;
  for (std::size_t column = 0; column < columns_.size(); ++column) {
    if (column > 0) line.append(kBetween, ' ');
    const bool is_cut = is_cutting_ && columns_[column] == Align::Left;
    const std::string cell = is_cut ? shortened(cells[column], widths_[column]) : cells[column];
    const std::size_t width = display_width(cell);
    const std::size_t padding = widths_[column] > width ? widths_[column] - width : 0;
    if (columns_[column] == Align::Right) line.append(padding, ' ');
    line += cell;
    if (columns_[column] == Align::Left && column + 1 < columns_.size()) line.append(padding, ' ');
  }
  line += '\n';
  out << line;
}

}  // namespace stfs::tools
