// The result of stfs diff, and the tables that it prints for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "tools/compare/model_difference.h"
#include "tools/compare/tensor_comparison.h"

namespace stfs::tools {

/// The delta that stfs diff --out has written.
struct WrittenDelta {
  std::filesystem::path path;
  std::uint64_t tensors = 0;
  std::uint64_t data_bytes = 0;
  std::uint64_t removed = 0;  // tensors of A that B lacks
  std::uint64_t renamed = 0;  // tensors of A that B has by another name
};

struct DiffReport {
  ModelPair models;
  ModelDifference difference{};
  std::vector<TensorComparison> comparisons{};  // of difference.pairs
  std::vector<std::string> changed_files{};     // files of A or B that changed during the command
  std::vector<std::string> unused_globs{};      // that match no tensor of A or B
  bool has_problem = false;                     // a failure may hide a difference
  std::optional<WrittenDelta> delta{};

  /// The number of tensors that were compared: the selected tensors of A or B.
  [[nodiscard]] std::size_t tensors() const;
  /// The number of bytes of A that were compared with as many bytes of B.
  [[nodiscard]] std::uint64_t size_bytes() const;
  /// Positions in `comparisons` of tensors with other bytes.
  [[nodiscard]] std::vector<std::size_t> other_bytes() const;
  /// The differences of all kinds. A tensor that cannot be read is a problem, not a difference.
  [[nodiscard]] std::size_t differences() const;
  /// Returns true if there is neither a difference nor a problem.
  [[nodiscard]] bool is_equal() const;
};

/// Prints a line for each difference.
void print_differences(const DiffReport& report, std::ostream& out);
/// Prints one line that counts the tensors and each kind of difference, and one for a delta.
void print_diff_summary(const DiffReport& report, std::ostream& out);

}  // namespace stfs::tools
