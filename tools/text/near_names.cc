// Edit distance with an upper limit.
#include "tools/text/near_names.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr std::size_t kSuggestions = 3;

/// Returns the number of characters to insert, remove, replace or swap with a neighbour. Any result above
/// `limit` only means that the distance is larger than `limit`.
std::size_t edit_distance(std::string_view from, std::string_view to, std::size_t limit) {
  const std::size_t difference = from.size() > to.size() ? from.size() - to.size() : to.size() - from.size();
  if (difference > limit) return limit + 1;
  std::vector<std::size_t> before_last;
  std::vector<std::size_t> last(to.size() + 1);
  std::vector<std::size_t> current(to.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= from.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      current[j] = std::min({replaced, last[j] + 1, current[j - 1] + 1});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        current[j] = std::min(current[j], before_last[j - 2] + 1);
      }
    }
    if (*std::min_element(current.begin(), current.end()) > limit) return limit + 1;
    before_last = last;
    std::swap(last, current);
  }
  return last[to.size()];
}

}  // namespace

NearNames::NearNames(std::string_view wanted)
    : wanted_(wanted), tolerance_(std::clamp<std::size_t>(wanted.size() / 4, 1, 4)) {}

void NearNames::offer(std::string_view name) {
  std::size_t distance = edit_distance(wanted_, name, tolerance_);
  if (distance > tolerance_) {
    // A name that contains the wanted text is also similar. It ranks after every typing error.
    if (wanted_.size() < 3 || name.find(wanted_) == std::string_view::npos) return;
    distance = tolerance_ + 1;
  }
  const auto place = std::upper_bound(nearest_.begin(), nearest_.end(), distance,
                                      [](std::size_t d, const Candidate& c) { return d < c.distance; });
  if (static_cast<std::size_t>(place - nearest_.begin()) >= kSuggestions) return;
  if (std::ranges::find(nearest_, name, &Candidate::name) != nearest_.end()) return;
  nearest_.insert(place, Candidate{distance, std::string(name)});
  if (nearest_.size() > kSuggestions) nearest_.pop_back();
}

void NearNames::offer(const TensorIndex& tensors) {
  for (std::uint32_t at = 0; at < tensors.size(); ++at) offer(tensors[at].name);
}

std::string NearNames::question() const {
  if (nearest_.empty()) return {};
  std::vector<std::string> names;
  for (const Candidate& candidate : nearest_) names.push_back(printable_name(candidate.name));
  return ", did you mean " + joined(names, " or ") + "?";
}

std::string unmatched_text(std::string_view glob, const std::vector<const TensorIndex*>& among) {
  NearNames near(glob);
  for (const TensorIndex* tensors : among) near.offer(*tensors);
  return printable_name(glob) + ": no tensor matches" + near.question();
}

}  // namespace stfs::tools
