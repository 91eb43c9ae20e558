// Compares the index of a sharded model with the tensors in its shards.
//
//   A tensor is served from the shard that the index names. If that shard lacks the tensor, it is served
//   from the only other shard that has it. A tensor that the index does not name is served from the only
//   shard that has it.
//
// Loaders that read shard after shard do the same, with one exception: two shards may hold different bytes
// under one name while the index does not decide. We do not serve that tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/format/tensor_id.h"
#include "core/model/model_index.h"
#include "core/model/model_shards.h"

namespace stfs {

struct ModelProblem {
  enum class Kind : std::uint8_t {
    ShardUnusable,     // missing, short, invalid, a loop of links, ...
    TensorMissing,     // neither in the shard that the index names nor in any other
    TensorElsewhere,   // in another shard than the index says
    TensorUnlisted,    // in a shard, but not in the index
    TensorTwice,       // in two shards
    MetadataConflict,  // two shards have different values for a key of `__metadata__`
  };
  Kind kind = Kind::ShardUnusable;
  /// One sentence for a person. It names the tensor or the shard.
  std::string message;
};

/// The place of a tensor: its shard, and its id in that shard's archive.
struct TensorPlace {
  std::uint32_t shard = 0;
  TensorId tensor{};

  friend auto operator<=>(const TensorPlace&, const TensorPlace&) = default;
};

struct TensorPlacement {
  /// The places of all tensors that can be served: by shard, then in the order of the archive's first
  /// version. No name occurs twice.
  std::vector<TensorPlace> places;
  /// Positions in the index of the tensors that can't be served: ascending, and so in order of name.
  std::vector<std::uint32_t> unserved;
  std::vector<ModelProblem> problems;
};

/// May throw std::bad_alloc. Needs memory in proportion to the index and the shards' headers.
TensorPlacement place_tensors(const ModelIndex& index, std::span<const Shard> shards);

}  // namespace stfs
