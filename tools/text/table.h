// Prints rows with aligned columns.
//
// On a terminal the rows fit its width: long cells at the left are shortened in their middle. Elsewhere, and
// with --json, nothing is shortened.
//
// The table makes each row twice, once to find the widths and once to print it. It keeps no rows in memory,
// because an archive may have a million tensors.
#pragma once

#include <cstddef>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::tools {

/// Sets the columns of the terminal to which the stream goes. A table that is printed to this stream then
/// fits.
void set_terminal_columns(std::ostream& out, std::size_t columns);

/// Returns the columns that were set; 0 without a terminal.
std::size_t terminal_columns(std::ostream& out);

/// Returns the text if it takes at most this many columns, else its beginning and its end with "..." between
/// them. The end is the longer part, because names of tensors differ there. The text must come from
/// printable.h.
std::string shortened(std::string_view text, std::size_t columns);

class Table {
 public:
  enum class Align { Left, Right };

  explicit Table(std::vector<Align> columns) : columns_(std::move(columns)), widths_(columns_.size()) {}

  /// Prints a row for each item. Stops when the stream fails.
  /// @param cells_of  returns an array of an item's cells, printable, one for each column.
  /// @param heading   the cells of a first row, or none.
  template <class Items, class CellsOf>
  void print(std::ostream& out, const Items& items, CellsOf&& cells_of,
             std::span<const std::string> heading = {}) {
    fit(heading);
    for (const auto& item : items) fit(cells_of(item));
    shrink_to_terminal(out);
    if (!heading.empty()) print_row(out, heading);
    for (const auto& item : items) {
      if (!out) return;
      print_row(out, cells_of(item));
    }
  }

 private:
  /// Widens the columns for one row.
  void fit(std::span<const std::string> cells);
  /// Makes left-aligned columns narrower, the widest first, until a row fits the terminal.
  void shrink_to_terminal(std::ostream& out);
  /// Prints one row.
  void print_row(std::ostream& out, std::span<const std::string> cells) const;

  std::vector<Align> columns_;
  std::vector<std::size_t> widths_;  // in terminal columns
  bool is_cutting_ = false;          // true: cells that are wider than their column are cut
};

}  // namespace stfs::tools
