// The GLOBs of a command line: which tensors they select, and which of them select none.
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
  /// Whether any glob matches the name (upload::matches_name()). Notes all globs that do.
  bool match(std::string_view name);
  /// The globs that have matched no name so far, in the order of the command line.
  [[nodiscard]] std::vector<std::string> unused() const;

 private:
  std::vector<std::string> globs_;
  std::vector<bool> is_used_;
};

}  // namespace stfs::tools
