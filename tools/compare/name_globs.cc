// Tries every glob on every name.
#include "tools/compare/name_globs.h"

#include "tools/device/selection.h"

namespace stfs::tools {

bool NameGlobs::match(std::string_view name) {
  bool is_matched = globs_.empty();
  for (std::size_t at = 0; at < globs_.size(); ++at) {
    if (!device::matches_name(globs_[at], name)) continue;
    is_used_[at] = true;
    is_matched = true;
  }
  return is_matched;
}

std::vector<std::string> NameGlobs::unused() const {
  std::vector<std::string> found;
  for (std::size_t at = 0; at < globs_.size(); ++at) {
    if (!is_used_[at]) found.push_back(globs_[at]);
  }
  return found;
}

}  // namespace stfs::tools
