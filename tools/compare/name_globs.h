// The GLOBs of a command line: finds the tensors that they select, and the globs that select none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stfs::tools {

class NameGlobs {
 public:
  /// Without a glob, every name matches.
  explicit NameGlobs(std::vector<std::string> globs) : globs_(std::move(globs)), is_used_(globs_.size()) {}

  [[nodiscard]] bool empty() const { return globs_.empty(); }
  /// Returns true if any glob matches the name (device::matches_name()). Notes all globs that match.
  bool match(std::string_view name);
  /// Returns the globs that have matched no name so far, in the order of the command line.
  [[nodiscard]] std::vector<std::string> unused() const;

 private:
  std::vector<std::string> globs_;
  std::vector<bool> is_used_;
};

}  // namespace stfs::tools
