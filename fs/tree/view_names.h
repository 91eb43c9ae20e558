// Maps tensors to file names in `.safetensors/npy` and `.safetensors/float32`, and back. A name is the
// tensor's flat file name with `.npy` appended.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/name_hash.h"
#include "core/format/tensor_id.h"
#include "core/format/tensor_index.h"

namespace stfs {

class Snapshot;

/// The names of one snapshot. Any thread may call. Tables that few mounts need are built on first use.
class ViewNames {
 public:
  /// The snapshot must outlive this object.
  explicit ViewNames(const Snapshot& snapshot);

  /// True if npy/ has a file of the tensor. A header of a NumPy file is made at each look-up, so it must be
  /// short.
  static bool has_npy(const Tensor& tensor);
  static bool has_float32(const Tensor& tensor);

  [[nodiscard]] std::optional<TensorId> tensor_of_flat(std::string_view file_name) const;
  [[nodiscard]] std::optional<TensorId> tensor_of_npy(std::string_view file_name) const;
  [[nodiscard]] std::string npy_name(TensorId tensor) const;
  /// The tensors in float32/.
  [[nodiscard]] const std::vector<TensorId>& floating() const { return floating_; }
  /// The tensors in npy/. Nothing: each tensor of the model.
  [[nodiscard]] const std::optional<std::vector<TensorId>>& in_npy() const { return in_npy_; }

 private:
  /// The names that `.npy` would make too long for a directory. Such names are cut and end in a hash.
  struct Long {
    NameMap<std::string, TensorId> tensors;
    std::unordered_map<TensorId, std::string> names;
  };

  [[nodiscard]] const Long& long_names() const;

  const Snapshot& snapshot_;
  std::vector<TensorId> floating_;
  std::optional<std::vector<TensorId>> in_npy_;
  mutable std::once_flag has_long_;
  mutable Long long_;
};

}  // namespace stfs
