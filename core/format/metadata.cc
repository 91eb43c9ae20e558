#include "core/format/metadata.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stfs {

std::optional<std::string_view> Metadata::find(std::string_view key) const {
  if (!is_sorted()) {
    for (const auto& [known, value] : *this) {
      if (known == key) return value;
    }
    return std::nullopt;
  }
  const auto place = std::lower_bound(
      order_.begin(), order_.end(), key,
      [this](std::uint32_t at, std::string_view wanted) { return (*this)[at].first < wanted; });
  if (place == order_.end() || (*this)[*place].first != key) return std::nullopt;
  return (*this)[*place].second;
}

void Metadata::sort_more(std::vector<std::uint32_t>& order) const {
  const auto sorted = static_cast<std::ptrdiff_t>(order.size());
  order.resize(ends_.size());
  std::iota(order.begin() + sorted, order.end(), static_cast<std::uint32_t>(sorted));
  const auto is_before = [this](std::uint32_t a, std::uint32_t b) {
    const int compared = (*this)[a].first.compare((*this)[b].first);
    return compared != 0 ? compared < 0 : a < b;
  };
  std::sort(order.begin() + sorted, order.end(), is_before);
  std::inplace_merge(order.begin(), order.begin() + sorted, order.end(), is_before);
}

std::optional<std::string_view> Metadata::repeated_key() const {
  std::vector<std::uint32_t> order = order_;
  sort_more(order);
  const auto twin = std::adjacent_find(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
    return (*this)[a].first == (*this)[b].first;
  });
  return twin == order.end() ? std::nullopt : std::optional((*this)[*twin].first);
}

void Metadata::keep_last_values() {
  sort_keys();
  std::vector<bool> is_repeated(ends_.size());
  bool is_any_repeated = false;
  for (std::size_t at = 1; at < order_.size(); ++at) {
    if ((*this)[order_[at - 1]].first != (*this)[order_[at]].first) continue;
    is_any_repeated = is_repeated[order_[at - 1]] = true;
  }
  if (!is_any_repeated) return;
  std::vector<std::uint32_t>().swap(order_);  // its memory is needed below
  Metadata kept;
  for (std::size_t at = 0; at < size(); ++at) {
    if (!is_repeated[at]) kept.emplace_back((*this)[at].first, (*this)[at].second);
  }
  kept.sort_keys();
  *this = std::move(kept);
}

}  // namespace stfs
