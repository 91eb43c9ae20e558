// Prints rows with aligned columns.
//
// The caller makes two passes, fit() over all rows and then print() over all rows. The table keeps no rows in
// memory, because an archive may have a million tensors.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

namespace stfs::tools {

class Table {
 public:
  enum class Align { Left, Right };

  explicit Table(std::vector<Align> columns) : columns_(std::move(columns)), widths_(columns_.size()) {}

  /// Widens the columns for one row. Each column has one printable cell.
  void fit(std::span<const std::string> cells);
  /// Writes the row and a newline. A cell wider than kMaxWidth shifts the following cells of its own row
  /// only, so one very long name does not push every other row off the screen.
  void print(std::ostream& out, std::span<const std::string> cells) const;

  static constexpr std::size_t kMaxWidth = 64;

 private:
  std::vector<Align> columns_;
  std::vector<std::size_t> widths_;  // in terminal columns
};

}  // namespace stfs::tools
