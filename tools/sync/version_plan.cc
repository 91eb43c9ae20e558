// The largest tensor that is left goes to the smallest shard.
#include "tools/sync/version_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <queue>
#include <string>
#include <utility>

#include "core/format/json_string.h"
#include "tools/compare/model_difference.h"
#include "tools/compare/name_globs.h"
#include "tools/sync/version_shard.h"
#include "tools/text/quantity.h"

namespace stfs::sync {
namespace {

constexpr std::uint64_t kLeastShardBytes = 16U << 20U;
constexpr std::uint64_t kShardsPerThread = 4;  // so that threads end at about the same time
constexpr std::uint64_t kMostHeaderBytes = 8U << 20U;

std::string described(const Tensor& tensor) {
  return fmt::format("{} {}", name_of(tensor.dtype), shape_text(tensor.shape));
}

std::string described(const tools::ModelPair& models, const tools::HeaderDifference& difference) {
  const auto name_in = [](const Model& model, std::uint32_t at) {
    return in_quotes(model.tensors()[at].name);
  };
  if (!difference.b) return name_in(models.a, *difference.a) + " is missing in NEW";
  if (!difference.a) return name_in(models.b, *difference.b) + " is missing in OLD";
  return fmt::format("{} is {} in OLD and {} in NEW", name_in(models.a, *difference.a),
                     described(models.a.tensors()[*difference.a]),
                     described(models.b.tensors()[*difference.b]));
}

}  // namespace

Result<std::vector<tools::TensorPair>> paired_tensors(const tools::ModelPair& models) {
  constexpr std::size_t kMostNamed = 3;
  tools::NameGlobs all({});
  auto difference = tools::difference_of({models.a}, {models.b}, all);
  if (difference.tensors.empty()) return std::move(difference.pairs);
  std::string text;
  for (std::size_t at = 0; at < std::min(kMostNamed, difference.tensors.size()); ++at) {
    text += (at == 0 ? "" : "; ") + described(models, difference.tensors[at]);
  }
  if (difference.tensors.size() > kMostNamed) {
    text += fmt::format("; and {} more", tools::counted(difference.tensors.size() - kMostNamed, "tensor"));
  }
  return fail(ErrorCode::InvalidArgument, EINVAL,
              "a version of diffs needs the same names, dtypes and shapes in both models: " + text);
}

std::vector<PlannedShard> plan_shards(const Model& model, std::vector<tools::TensorPair> pairs,
                                      std::uint64_t threads) {
  const auto size_of = [&](const tools::TensorPair& pair) { return model.tensors()[pair.b].data.size_bytes; };
  std::ranges::stable_sort(pairs, std::ranges::greater(), size_of);
  std::uint64_t total_bytes = 0;
  for (const tools::TensorPair& pair : pairs) total_bytes += size_of(pair);
  std::vector<PlannedShard> shards(
      std::clamp<std::uint64_t>(total_bytes / kLeastShardBytes, 1, kShardsPerThread * threads));

  using Place = std::pair<std::uint64_t, std::size_t>;  // the size of a shard, and its position
  std::priority_queue<Place, std::vector<Place>, std::greater<>> smallest;
  for (std::size_t at = 0; at < shards.size(); ++at) smallest.emplace(0, at);
  for (const tools::TensorPair& pair : pairs) {
    const std::uint64_t header_bytes = most_header_bytes(model.tensors()[pair.b].name);
    const auto is_full = [&](const Place& place) {
      return shards[place.second].header_bytes + header_bytes > kMostHeaderBytes;
    };
    while (!smallest.empty() && is_full(smallest.top())) smallest.pop();
    if (smallest.empty()) {
      smallest.emplace(0, shards.size());
      shards.emplace_back();
    }
    const std::size_t at = smallest.top().second;
    smallest.pop();
    shards[at].tensors.push_back(pair);
    shards[at].size_bytes += size_of(pair);
    shards[at].header_bytes += header_bytes;
    smallest.emplace(shards[at].size_bytes, at);
  }
  std::ranges::stable_sort(shards, std::ranges::greater(), &PlannedShard::size_bytes);
  return shards;
}

}  // namespace stfs::sync
