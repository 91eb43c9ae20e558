// What the index of a sharded model says, against what its shards hold.
//
//   a tensor is served from the shard that the index names; where that has it not, from the only other one
//   that has it; a tensor that the index does not name, from the only shard that has it
//
// What loaders do that read shard after shard, except where two shards hold different bytes under one name
// and nothing says which of them is meant: that one is not served.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/model/model_index.h"
#include "core/model/model_shards.h"

namespace stfs {

struct ModelProblem {
  enum class Kind : std::uint8_t {
    ShardUnusable,     // missing, short, invalid, a loop of links, ...
    TensorMissing,     // not in the shard that the index names, nor in any other
    TensorElsewhere,   // in another shard than the index says
    TensorUnlisted,    // in a shard, not in the index
    TensorTwice,       // in two shards
    MetadataConflict,  // two shards have different values for a key of `__metadata__`
  };
  Kind kind = Kind::ShardUnusable;
  /// One sentence for a person that names the tensor or the shard.
  std::string message;
};

/// Where a tensor lies: which shard, and its position in that shard's own index.
struct TensorPlace {
  std::uint32_t shard = 0;
  std::uint32_t tensor = 0;

  friend auto operator<=>(const TensorPlace&, const TensorPlace&) = default;
};

struct Agreement {
  /// Of every tensor that can be served: in order of shard, then of offset. No name comes twice.
  std::vector<TensorPlace> places;
  /// Positions in the index of those that can't, ascending, thus in order of name.
  std::vector<std::uint32_t> unserved;
  std::vector<ModelProblem> problems;
};

/// May throw std::bad_alloc; takes memory in proportion to the index and the shards' headers.
Agreement compare(const ModelIndex& index, std::span<const Shard> shards);

}  // namespace stfs
