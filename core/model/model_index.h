// `model.safetensors.index.json`: which file holds which tensor of a sharded model.
//
//   { "metadata": { "total_size": BYTES, ... }, "weight_map": { NAME: SHARD, ... }, ... }
//
// An index is text that anybody may have written: a shard is the name of a file in the index's own
// directory, and never a way out of it. What is in those files is for the reader of the shards to compare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/flat_array.h"

namespace stfs {

/// More than a million tensors need.
inline constexpr std::uint64_t kMaxModelIndexBytes = 256 << 20;
/// More than anybody opens; it keeps the memory for a hostile index in proportion to its text.
inline constexpr std::uint32_t kMaxShards = 1 << 16;

/// Immutable; any number of threads may read it.
class ModelIndex {
 public:
  /// A view: valid as long as the index.
  struct Entry {
    std::string_view tensor;
    std::uint32_t shard = 0;  // position in shards()
  };

  /// Number of tensors.
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(rows_.size()); }
  /// In order of the tensors' names, byte by byte.
  [[nodiscard]] Entry operator[](std::uint32_t position) const {
    return {name_of(rows_[position]), rows_[position].shard};
  }
  /// The shard of the tensor of that exact name.
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view tensor) const;
  /// Each file name that a tensor has, once, in ascending order.
  [[nodiscard]] const std::vector<std::string>& shards() const { return shards_; }
  /// What metadata.total_size says: nothing where it is missing, or no whole number (transformers counts a
  /// boolean as an eighth of a byte).
  [[nodiscard]] std::optional<std::uint64_t> total_size_bytes() const { return total_size_bytes_; }

 private:
  friend class ModelIndexReader;

  struct Row {
    std::uint32_t name_at = 0;
    std::uint32_t name_size = 0;
    std::uint32_t shard = 0;
    std::uint32_t key_at = 0;  // position of the key in the text
  };
  [[nodiscard]] std::string_view name_of(const Row& row) const {
    return {names_.begin() + row.name_at, row.name_size};
  }
  /// Puts the rows in order. @return two rows of one name, the earlier in the text first, if there are any.
  std::optional<std::pair<Row, Row>> sort();

  FlatArray<char> names_;
  FlatArray<Row> rows_;
  std::vector<std::string> shards_;
  std::optional<std::uint64_t> total_size_bytes_;
};

/// Keys that nobody here knows are let through, wherever they are, and null stands for what is missing.
/// Takes at most about twice the text's size in memory.
/// @param json  all of the file.
/// @return InvalidArgument, or DuplicateKey, with the byte where it went wrong and why, without a path.
Result<ModelIndex> parse_model_index(std::string_view json);

}  // namespace stfs
