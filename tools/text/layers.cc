// Joins layers by pairs, then by fours, until they are few enough.
#include "tools/text/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

namespace stfs::tools {
namespace {

/// Returns the number that the whole text is; nothing for "007", so that two layers never have one label.
std::optional<std::uint64_t> number_of(std::string_view part) {
  constexpr std::size_t kMostDigits = 9;
  std::uint64_t number = 0;
  const auto [end, failed] = std::from_chars(part.data(), part.data() + part.size(), number);
  const bool is_number = !part.empty() && part.size() <= kMostDigits && failed == std::errc() &&
                         end == part.data() + part.size() && (part.front() != '0' || part.size() == 1);
  return is_number ? std::optional(number) : std::nullopt;
}

std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t dot = 0; (dot = name.find('.')) != name.npos; name.remove_prefix(dot + 1))
    parts.push_back(name.substr(0, dot));
  parts.push_back(name);
  return parts;
}

std::string joined_parts(std::span<const std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += (text.empty() ? "" : ".") + std::string(part);
  return text;
}

using Place = std::tuple<std::string, bool, std::uint64_t>;  // stem, whether it is numbered, number
using Groups = std::map<Place, Layer>;

Groups groups_of(const TensorIndex& tensors, std::span<const std::uint32_t> positions, std::uint64_t joined) {
  Groups groups;
  std::map<Place, std::uint64_t> last;
  for (const std::uint32_t position : positions) {
    const LayerName name = layer_of(tensors[position].name);
    const std::uint64_t first = name.number.value_or(0) / joined * joined;
    const Place place(name.stem, name.number.has_value(), first);
    groups[place].tensors.push_back(position);
    last[place] = std::max(last[place], name.number.value_or(0));
  }
  for (auto& [place, layer] : groups) {
    const auto& [stem, is_numbered, first] = place;
    layer.label = is_numbered ? fmt::format("{}{}{}", stem, stem.empty() ? "" : ".", first) : stem;
    if (is_numbered && last[place] > first) layer.label += fmt::format("-{}", last[place]);
  }
  return groups;
}

}  // namespace

LayerName layer_of(std::string_view tensor_name) {
  const std::vector<std::string_view> parts = parts_of(tensor_name);
  const auto found = std::find_if(parts.begin(), parts.end(), [](auto part) { return number_of(part); });
  LayerName name;
  if (found == parts.end()) {
    const std::size_t kept = std::max<std::size_t>(parts.size() - 1, 1);
    name.stem = joined_parts(std::span(parts).first(kept));
    name.rest = joined_parts(std::span(parts).subspan(kept));
    return name;
  }
  name.stem = joined_parts(std::span(parts.begin(), found));
  name.number = number_of(*found);
  std::vector<std::string_view> rest(found + 1, parts.end());
  std::replace_if(
      rest.begin(), rest.end(), [](auto part) { return number_of(part).has_value(); }, "*");
  name.rest = joined_parts(rest);
  return name;
}

std::vector<Layer> layers_of(const TensorIndex& tensors, std::span<const std::uint32_t> positions,
                             std::size_t most) {
  Groups groups = groups_of(tensors, positions, 1);
  std::uint64_t largest = 0;
  for (const auto& [place, layer] : groups) largest = std::max(largest, std::get<2>(place));
  for (std::uint64_t joined = 2; groups.size() > most && joined <= 2 * largest; joined *= 2)
    groups = groups_of(tensors, positions, joined);
  std::vector<Layer> layers;
  std::size_t others = 0;
  for (auto& [place, layer] : groups) {
    const bool is_last = layers.size() == most;
    if (!is_last) {
      layers.push_back(std::move(layer));
      continue;
    }
    ++others;
    auto& last = layers.back().tensors;
    last.insert(last.end(), layer.tensors.begin(), layer.tensors.end());
    layers.back().label = fmt::format("{} others", others + 1);
  }
  return layers;
}

}  // namespace stfs::tools
