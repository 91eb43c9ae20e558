// Rows with aligned columns.
//
// Two passes, fit() over all rows and then print() over all rows, rather than rows kept in memory: an
// archive may have a million tensors.
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

  /// Makes the columns wide enough for a row of printable cells, one per column.
  void fit(std::span<const std::string> cells);
  /// Writes the row and a newline. A cell wider than kMaxWidth shifts what follows it in its own row
  /// only: one endless name shall not push every other row off the screen.
  void print(std::ostream& out, std::span<const std::string> cells) const;

  static constexpr std::size_t kMaxWidth = 64;

 private:
  std::vector<Align> columns_;
  std::vector<std::size_t> widths_;  // in terminal columns
};

}  // namespace stfs::tools
