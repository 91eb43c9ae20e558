// Joins layers by pairs, then by fours, until they are few enough.
#include "tools/text/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
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

/// A tensor's name, cut at its layer. The parts are parts of the name.
struct CutName {
  std::string_view stem;
  std::optional<std::uint64_t> number;
  std::string_view rest;
};

/// Returns the text up to the next dot, and removes it with the dot.
std::string_view take_part(std::string_view& text) {
  const std::size_t dot = text.find('.');
  const std::string_view part = text.substr(0, dot);
  text.remove_prefix(dot == text.npos ? text.size() : dot + 1);
  return part;
}

CutName cut(std::string_view name) {
  for (std::string_view left = name; !left.empty();) {
    const std::size_t begin = name.size() - left.size();
    if (const auto number = number_of(take_part(left)))
      return {.stem = name.substr(0, begin == 0 ? 0 : begin - 1), .number = number, .rest = left};
  }
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos) return {.stem = name, .number = {}, .rest = {}};
  return {.stem = name.substr(0, dot), .number = {}, .rest = name.substr(dot + 1)};
}

/// A tensor with its layer. The layers without a number come before those with one.
struct Member {
  std::string_view stem;
  std::optional<std::uint64_t> number;
  std::uint32_t position = 0;
  std::uint32_t stem_number = 0;  // counts the stems
};

std::vector<Member> members_by_layer(const TensorIndex& tensors, std::span<const std::uint32_t> positions) {
  std::vector<Member> members;
  members.reserve(positions.size());
  for (const std::uint32_t position : positions) {
    const CutName name = cut(tensors[position].name);
    members.push_back({.stem = name.stem, .number = name.number, .position = position});
  }
  std::ranges::stable_sort(members, [](const Member& a, const Member& b) {
    return std::tie(a.stem, a.number) < std::tie(b.stem, b.number);
  });
  for (std::size_t at = 1; at < members.size(); ++at) {
    const bool is_new = members[at].stem != members[at - 1].stem;
    members[at].stem_number = members[at - 1].stem_number + (is_new ? 1 : 0);
  }
  return members;
}

/// True if both belong to one layer when so many neighbours are joined.
bool are_together(const Member& a, const Member& b, std::uint64_t joined) {
  return a.stem_number == b.stem_number && a.number.has_value() == b.number.has_value() &&
         a.number.value_or(0) / joined == b.number.value_or(0) / joined;
}

std::size_t count_layers(std::span<const Member> members, std::uint64_t joined) {
  std::size_t count = members.empty() ? 0 : 1;
  for (std::size_t at = 1; at < members.size(); ++at)
    count += are_together(members[at - 1], members[at], joined) ? 0 : 1;
  return count;
}

std::string label_of(const Member& first, const Member& last, std::uint64_t joined) {
  std::string label = short_label(first.stem);
  if (!first.number) return label;
  const std::uint64_t begin = *first.number / joined * joined;
  label += fmt::format("{}{}", label.empty() ? "" : ".", begin);
  if (*last.number > begin) label += fmt::format("-{}", *last.number);
  return label;
}

}  // namespace

LayerName layer_of(std::string_view tensor_name) {
  const CutName cut_name = cut(tensor_name);
  LayerName name{.stem = std::string(cut_name.stem), .number = cut_name.number, .rest = {}};
  if (!name.number) {
    name.rest = cut_name.rest;
    return name;
  }
  for (std::string_view left = cut_name.rest; !left.empty();) {
    const std::string_view part = take_part(left);
    if (!name.rest.empty()) name.rest += '.';
    name.rest += number_of(part) ? "*" : part;
  }
  return name;
}

std::string short_label(std::string_view label) {
  constexpr std::size_t kMostBytes = 256;
  constexpr std::size_t kKeptBytes = 120;  // at each end
  if (label.size() <= kMostBytes) return std::string(label);
  return fmt::format("{}...{}", label.substr(0, kKeptBytes), label.substr(label.size() - kKeptBytes));
}

std::vector<Layer> layers_of(const TensorIndex& tensors, std::span<const std::uint32_t> positions,
                             std::size_t most) {
  const std::vector<Member> members = members_by_layer(tensors, positions);
  std::uint64_t largest = 0;
  for (const Member& member : members) largest = std::max(largest, member.number.value_or(0));
  std::uint64_t joined = 1;
  while (count_layers(members, joined) > most && joined <= largest) joined *= 2;
  std::vector<Layer> layers;
  std::size_t others = 0;
  for (std::size_t begin = 0, end = 0; begin < members.size(); begin = end) {
    while (end < members.size() && are_together(members[begin], members[end], joined)) ++end;
    if (layers.size() < most) {
      layers.push_back({.label = label_of(members[begin], members[end - 1], joined), .tensors = {}});
    } else {
      layers.back().label = fmt::format("{} others", ++others + 1);
    }
    for (std::size_t at = begin; at < end; ++at) layers.back().tensors.push_back(members[at].position);
  }
  return layers;
}

}  // namespace stfs::tools
