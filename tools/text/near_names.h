// Finds the existing names that are similar to a mistyped name.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/tensor_index.h"

namespace stfs::tools {

class NearNames {
 public:
  explicit NearNames(std::string_view wanted);

  /// Considers one existing name. Dissimilar names are rejected cheaply, so a million may be offered.
  void offer(std::string_view name);
  /// Considers the names of all tensors.
  void offer(const TensorIndex& tensors);

  /// Returns ", did you mean A, B or C?" with the most similar names, printable; empty if no name is similar.
  [[nodiscard]] std::string question() const;

 private:
  struct Candidate {
    std::size_t distance;
    std::string name;
  };
  std::string wanted_;
  std::size_t tolerance_;
  std::vector<Candidate> nearest_;  // best first, at most three
};

/// Returns "GLOB: no tensor matches, did you mean A?", for a glob that matches none of these tensors.
std::string unmatched_text(std::string_view glob, const std::vector<const TensorIndex*>& among);

}  // namespace stfs::tools
