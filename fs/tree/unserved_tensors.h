// Finds tensors that the model's index names but that no shard can serve. A look-up of such a tensor must
// fail with EIO (it cannot be read), not with ENOENT (it does not exist). This class knows the file names
// that these tensors would have in the tree.
#pragma once

#include <string_view>

#include "core/format/tensor_index.h"
#include "core/model/model.h"
#include "fs/base/versioned.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// Immutable once built; any number of threads may read it.
class UnservedTensors {
 public:
  /// The model must outlive this object.
  UnservedTensors(const Versioned<Model>& model, Layout layout);

  /// Returns the unserved tensor that would have this name in a directory of the tree. If the name would be a
  /// directory, returns the first unserved tensor below it. Returns null if there is neither.
  [[nodiscard]] const Model::Unserved* find(const InodeTable& tree, Ino directory,
                                            std::string_view file_name) const;
  /// Returns the unserved tensor with that flat file name, whatever the layout, or null.
  [[nodiscard]] const Model::Unserved* find_flat(std::string_view file_name) const;
  /// The error for a name that the tree does not have: EIO for an unserved tensor, ENOENT for null.
  [[nodiscard]] tl::unexpected<Error> why_missing(const Model::Unserved* tensor) const {
    if (tensor == nullptr) return fail(ErrorCode::NotFound, ENOENT, "no such tensor");
    return fail(ErrorCode::ArchiveChanged, EIO, model_->why_unserved(*tensor));
  }

 private:
  static TensorIndex index_of(const Model& model);

  const Versioned<Model>& model_;
  const TensorIndex names_;  // tensors without bytes, in the order of model.unserved()
  const InodeTable table_;
  const InodeTable flat_;
};

}  // namespace stfs
