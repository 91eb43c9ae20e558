// Reads `model.safetensors.index.json`, which maps the tensors of a sharded model to files.
//
//   { "metadata": { "total_size": BYTES, ... }, "weight_map": { NAME: SHARD, ... }, ... }
//
// Any user may have written the index: each shard must be the name of a file in the index's directory, and
// the name must not lead out of this directory. The code that opens the shards compares their content with
// the index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/flat_array.h"

namespace stfs {

/// This is more than a million tensors need.
inline constexpr std::uint64_t kMaxModelIndexBytes = 256 << 20;
/// This is more than any model has. The limit keeps the memory for a hostile index in proportion to its text.
inline constexpr std::uint32_t kMaxShards = 1 << 16;

/// Immutable: any number of threads may read it.
class ModelIndex {
 public:
  /// A view, valid as long as the index.
  struct Entry {
    std::string_view tensor;
    std::uint32_t shard = 0;  // position in shards()
  };

  /// Number of tensors.
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(rows_.size()); }
  /// Entries are in order of the tensors' names, byte by byte.
  [[nodiscard]] Entry operator[](std::uint32_t position) const {
    return {name_of(rows_[position]), rows_[position].shard};
  }
  /// Returns the shard of the tensor with exactly this name.
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view tensor) const;
  /// All file names that tensors map to, each once, in ascending order.
  [[nodiscard]] const std::vector<std::string>& shards() const { return shards_; }

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
  /// Sorts the rows. @return two rows of the same name, the row that is earlier in the text first; nothing:
  /// no name occurs twice.
  std::optional<std::pair<Row, Row>> sort();

  FlatArray<char> names_;
  FlatArray<Row> rows_;
  std::vector<std::string> shards_;
};

/// Parses an index. Unknown keys are ignored everywhere. null is handled like a missing key. The call needs
/// at most about twice the text's size in memory.
/// @param json  the whole file.
/// @return InvalidArgument or DuplicateKey, with the reason and the byte of the error, without a path.
Result<ModelIndex> parse_model_index(std::string_view json);

/// Returns the text of an index with another weight_map. metadata.total_size becomes total_bytes, if it
/// exists. Everything else stays unchanged.
/// @param json  a text that parse_model_index() accepts.
/// @param shard_of  the file name of each tensor's shard.
Result<std::string> rewrite_model_index(std::string_view json,
                                        const std::map<std::string_view, std::string>& shard_of,
                                        std::uint64_t total_bytes);

}  // namespace stfs
