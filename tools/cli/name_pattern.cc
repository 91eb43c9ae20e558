// Backtracks only over the last *, as usual for patterns of this kind.
#include "tools/cli/name_pattern.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stfs::tools {

std::optional<std::string> renamed(std::string_view name, std::string_view from, std::string_view to) {
  struct Star {
    std::size_t in_name = 0;  // where its text begins
    std::size_t in_from = 0;  // behind it
    std::size_t end = 0;      // where its text ends so far
  };
  std::vector<Star> stars;
  std::size_t at = 0;
  std::size_t next = 0;
  while (at < name.size() || next < from.size()) {
    if (next < from.size() && from[next] == '*') {
      stars.push_back({at, ++next, at});
    } else if (next < from.size() && at < name.size() && from[next] == name[at]) {
      ++at;
      ++next;
    } else if (!stars.empty() && stars.back().end < name.size()) {
      at = ++stars.back().end;
      next = stars.back().in_from;
    } else {
      return std::nullopt;
    }
  }
  std::string result;
  auto star = stars.begin();
  for (const char c : to) {
    if (c != '*' || star == stars.end()) {
      result += c;
    } else {
      result += name.substr(star->in_name, star->end - star->in_name);
      ++star;
    }
  }
  return result;
}

}  // namespace stfs::tools
