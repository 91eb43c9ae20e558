// Which of many names a mistyped one was meant to be.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::tools {

class NearNames {
 public:
  explicit NearNames(std::string_view wanted);

  /// Considers one existing name; cheap for those that are far off, so that a million may be offered.
  void offer(std::string_view name);

  /// ", did you mean A, B or C?" with the nearest few, printable; empty where nothing is near.
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

}  // namespace stfs::tools
