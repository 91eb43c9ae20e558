// Looks up each tensor of A in B, and then the other way round.
#include "tools/compare/model_difference.h"

#include <algorithm>
#include <map>

namespace stfs::tools {
namespace {

/// Adds a tensor of A and one of B to the pairs, or to the tensors that differ.
void add_both(const Model& a, std::uint32_t at_a, const Model& b, std::uint32_t at_b,
              ModelDifference& difference) {
  const Tensor tensor_a = a.tensors()[at_a];
  const Tensor tensor_b = b.tensors()[at_b];
  std::vector<std::string_view> kinds;
  if (tensor_a.dtype != tensor_b.dtype) kinds.push_back("dtype");
  if (!std::ranges::equal(tensor_a.shape, tensor_b.shape)) kinds.push_back("shape");
  if (kinds.empty()) {
    difference.pairs.push_back({at_a, at_b});
  } else {
    difference.tensors.push_back({at_a, at_b, std::move(kinds)});
  }
}

/// Compares the models' tensors whose names `is_wanted` accepts.
template <class Predicate>
void compare_headers(const Model& a, const Model& b, const Predicate& is_wanted,
                     ModelDifference& difference) {
  for (std::uint32_t at = 0; at < a.tensors().size(); ++at) {
    const std::string_view name = a.tensors()[at].name;
    if (!is_wanted(name)) continue;
    if (const auto other = b.tensors().find(name)) {
      add_both(a, at, b, *other, difference);
    } else {
      difference.tensors.push_back({at, std::nullopt, {"only_in_a"}});
    }
  }
  for (std::uint32_t at = 0; at < b.tensors().size(); ++at) {
    const std::string_view name = b.tensors()[at].name;
    if (a.tensors().find(name) || !is_wanted(name)) continue;
    difference.tensors.push_back({std::nullopt, at, {"only_in_b"}});
  }
}

using MetadataMap = std::map<std::string_view, std::string_view>;

std::optional<std::string_view> value_in(const MetadataMap& map, std::string_view key) {
  const auto found = map.find(key);
  return found == map.end() ? std::nullopt : std::optional(found->second);
}

std::vector<MetadataDifference> compare_metadata(const Metadata& a, const Metadata& b) {
  const MetadataMap map_a(a.begin(), a.end());
  const MetadataMap map_b(b.begin(), b.end());
  std::vector<MetadataDifference> found;
  for (const auto& [key, value] : a) {
    const auto other = value_in(map_b, key);
    if (other != value) found.push_back({key, value, other});
  }
  for (const auto& [key, value] : b) {
    if (!map_a.contains(key)) found.push_back({key, std::nullopt, value});
  }
  return found;
}

}  // namespace

ModelDifference difference_of(const ComparedModel& a, const ComparedModel& b, NameGlobs& globs) {
  ModelDifference difference;
  if (a.tensor && b.tensor) {
    add_both(a.model, *a.tensor, b.model, *b.tensor, difference);
  } else if (a.tensor || b.tensor) {
    const std::string_view name =
        a.tensor ? a.model.tensors()[*a.tensor].name : b.model.tensors()[*b.tensor].name;
    compare_headers(
        a.model, b.model, [&](std::string_view other) { return other == name; }, difference);
  } else {
    compare_headers(
        a.model, b.model, [&](std::string_view name) { return globs.match(name); }, difference);
    if (globs.empty()) {
      difference.metadata = compare_metadata(a.model.metadata(), b.model.metadata());
    }
  }
  return difference;
}

}  // namespace stfs::tools
