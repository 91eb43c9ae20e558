// Maps tensors to file names in `.safetensors/npy` and `.safetensors/float32`, and back. A name is the
// tensor's flat file name with `.npy` appended.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/base/name_hash.h"
#include "fs/tree/tensor_tree.h"

namespace stfs {

/// The names of one version of the model. Any thread may call. Tables that few mounts need are built on first
/// use.
class ViewNames {
 public:
  /// The tree's version must outlive this object.
  explicit ViewNames(const TensorTree::Version& tree) : tree_(tree) {}

  [[nodiscard]] std::optional<TensorId> tensor_of_flat(std::string_view file_name) const;
  [[nodiscard]] std::optional<TensorId> tensor_of_npy(std::string_view file_name) const;
  [[nodiscard]] std::string npy_name(TensorId tensor) const;

 private:
  /// The names that `.npy` would make too long for a directory. Such names are cut and end in a hash.
  struct Long {
    NameMap<std::string, TensorId> tensors;
    std::unordered_map<TensorId, std::string> names;
  };

  [[nodiscard]] const Long& long_names() const;

  const TensorTree::Version& tree_;
  mutable std::once_flag has_long_;
  mutable Long long_;
};

}  // namespace stfs
