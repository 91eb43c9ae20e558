// The names under which tensors would lie in the tree that the model's index names and no shard serves: who
// looks for one shall hear that it can't be read, not that there is none.
#pragma once

#include <string_view>

#include "core/format/tensor_index.h"
#include "core/model/model.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// Immutable once built; any number of threads may read it.
class UnservedTensors {
 public:
  /// The model must outlive it.
  UnservedTensors(const Model& model, Layout layout);

  /// The tensor that would lie under that name in a directory of the tree, or the first one below it, where
  /// the name would be a directory; else null.
  [[nodiscard]] const Model::Unserved* find(const InodeTable& tree, Ino directory,
                                            std::string_view file_name) const;
  /// The one of that flat file name, whatever the layout; else null.
  [[nodiscard]] const Model::Unserved* find_flat(std::string_view file_name) const;

 private:
  static TensorIndex index_of(const Model& model);

  const Model& model_;
  const TensorIndex names_;  // empty tensors, in the model's order of unserved ones
  const InodeTable table_;
  const InodeTable flat_;
};

}  // namespace stfs
