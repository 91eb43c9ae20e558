#include "core/model/tensor_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "core/format/json_string.h"

namespace stfs {
namespace {

using Kind = ModelProblem::Kind;

class Comparison {
 public:
  Comparison(const ModelIndex& index, std::span<const Shard> shards) : index_(index), shards_(shards) {}

  TensorPlacement run() {
    take_what_the_index_names();
    report_shards();
    take_what_is_left();
    settle_the_rest();
    std::ranges::sort(result_.places);
    return std::move(result_);
  }

 private:
  void take_what_the_index_names() {
    is_taken_.resize(shards_.size());
    for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
      if (shards_[shard].archive) is_taken_[shard].resize(shards_[shard].version->tensors().size());
    }
    result_.places.reserve(index_.size());
    for (std::uint32_t row = 0; row < index_.size(); ++row) {
      const auto [name, shard] = index_[row];
      const auto position = find(shard, name);
      if (position) {
        is_taken_[shard][*position] = true;
        result_.places.push_back({shard, id_of(shard, *position)});
      } else {
        missing_.push_back(row);
      }
    }
  }

  void take_what_is_left() {
    for (std::uint32_t shard = 0; shard < shards_.size(); ++shard) {
      for (std::uint32_t tensor = 0; tensor < is_taken_[shard].size(); ++tensor) {
        if (is_taken_[shard][tensor]) continue;
        const std::string_view name = shards_[shard].version->tensors()[tensor].name;
        const auto named = index_.find(name);
        if (named && find(*named, name)) {
          add(Kind::TensorTwice, "tensor {}: in {}, as the index says, and also in {}: the second is ignored",
              in_quotes(name), file_name(*named), file_name(shard));
        } else {
          strays_[name].push_back({shard, id_of(shard, tensor)});
        }
      }
    }
  }

  void report_shards() {
    std::vector<std::uint32_t> named(shards_.size());
    for (const std::uint32_t row : missing_) ++named[index_[row].shard];
    for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
      if (!shards_[shard].failure) continue;
      add(Kind::ShardUnusable, "{} (the index names {} tensor{} in it)", shards_[shard].failure->message,
          named[shard], named[shard] == 1 ? "" : "s");
    }
  }

  void settle_the_rest() {
    for (const std::uint32_t row : missing_) {
      const auto [name, shard] = index_[row];
      const auto stray = strays_.find(name);
      if (stray != strays_.end() && stray->second.size() == 1) {
        result_.places.push_back(stray->second.front());
        add(Kind::TensorElsewhere, "tensor {}: in {}, but the index names {}", in_quotes(name),
            file_name(stray->second.front().shard), file_name(shard));
      } else {
        result_.unserved.push_back(row);
        if (stray != strays_.end()) {
          add_twice(name, stray->second);
        } else if (shards_[shard].archive) {
          add(Kind::TensorMissing, "tensor {}: not in {}, which the index names", in_quotes(name),
              file_name(shard));
        }
      }
      if (stray != strays_.end()) strays_.erase(stray);
    }
    for (const auto& [name, places] : strays_) {
      if (places.size() > 1) {
        add_twice(name, places);
        continue;
      }
      result_.places.push_back(places.front());
      add(Kind::TensorUnlisted, "tensor {}: in {}, but not in the index", in_quotes(name),
          file_name(places.front().shard));
    }
  }

  [[nodiscard]] std::optional<std::uint32_t> find(std::uint32_t shard, std::string_view name) const {
    return shards_[shard].archive ? shards_[shard].version->tensors().find(name) : std::nullopt;
  }

  [[nodiscard]] TensorId id_of(std::uint32_t shard, std::uint32_t position) const {
    return shards_[shard].version->ids.of(position);
  }

  void add_twice(std::string_view name, std::span<const TensorPlace> places) {
    add(Kind::TensorTwice, "tensor {}: in {} and in {}, and the index names neither: ignored",
        in_quotes(name), file_name(places[0].shard), file_name(places[1].shard));
  }

  template <class... Parts>
  void add(Kind kind, fmt::format_string<Parts...> format, Parts&&... parts) {
    result_.problems.push_back({kind, fmt::format(format, std::forward<Parts>(parts)...)});
  }

  [[nodiscard]] const std::string& file_name(std::uint32_t shard) const { return index_.shards()[shard]; }

  const ModelIndex& index_;
  const std::span<const Shard> shards_;
  TensorPlacement result_;
  std::vector<std::vector<bool>> is_taken_;                      // by shard, by tensor
  std::vector<std::uint32_t> missing_;                           // rows of the index
  std::map<std::string_view, std::vector<TensorPlace>> strays_;  // tensors that are not where the index says
};

}  // namespace

TensorPlacement place_tensors(const ModelIndex& index, std::span<const Shard> shards) {
  return Comparison(index, shards).run();
}

}  // namespace stfs
