// Maps tensors to file names in `.safetensors/npy` and `.safetensors/float32`, and back. A name is the
// tensor's flat file name with `.npy` appended.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/model/model.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// Any thread may call. Tables that few mounts need are built on first use.
class ViewNames {
 public:
  /// The model and the tree must outlive this object.
  ViewNames(const Model& model, const InodeTable& tree, Layout layout)
      : model_(model), tree_(tree), layout_(layout) {}

  [[nodiscard]] std::optional<TensorId> tensor_of_flat(std::string_view file_name) const;
  [[nodiscard]] std::optional<TensorId> tensor_of_npy(std::string_view file_name) const;
  [[nodiscard]] std::string npy_name(TensorId tensor) const;

 private:
  /// The names that `.npy` makes too long for a directory. They are cut and end in a hash.
  struct Long {
    std::unordered_map<std::string, TensorId> tensors;
    std::unordered_map<TensorId, std::string> names;
  };

  [[nodiscard]] const InodeTable& flat() const;
  [[nodiscard]] const Long& long_names() const;

  const Model& model_;
  const InodeTable& tree_;
  const Layout layout_;
  mutable std::once_flag has_flat_;
  mutable std::unique_ptr<InodeTable> own_flat_;  // only in layout=tree
  mutable std::once_flag has_long_;
  mutable Long long_;
};

}  // namespace stfs
