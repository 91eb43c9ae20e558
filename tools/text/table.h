// Prints rows with aligned columns.
//
// The table makes each row twice, once to find the widths and once to print it. It keeps no rows in memory,
// because an archive may have a million tensors.
#pragma once

#include <cstddef>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace stfs::tools {

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
    if (!heading.empty()) print_row(out, heading);
    for (const auto& item : items) {
      if (!out) return;
      print_row(out, cells_of(item));
    }
  }

 private:
  /// Widens the columns for one row.
  void fit(std::span<const std::string> cells);
  /// Prints one row.
  void print_row(std::ostream& out, std::span<const std::string> cells) const;

  std::vector<Align> columns_;
  std::vector<std::size_t> widths_;  // in terminal columns
};

}  // namespace stfs::tools
