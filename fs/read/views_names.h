// Names of the files in `.safetensors/npy` and its like: a tensor's flat file name, with `.npy` behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/format/tensor_index.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// Any thread may call. What is not always needed is made when it is first asked for.
class ViewNames {
 public:
  /// Both must outlive it.
  ViewNames(const TensorIndex& tensors, const InodeTable& tree, Layout layout)
      : tensors_(tensors), tree_(tree), layout_(layout) {}

  [[nodiscard]] std::optional<std::uint32_t> tensor_of_flat(std::string_view file_name) const;
  [[nodiscard]] std::optional<std::uint32_t> tensor_of_npy(std::string_view file_name) const;
  [[nodiscard]] std::string npy_name(std::uint32_t tensor) const;

 private:
  /// Those that `.npy` makes too long for a directory: cut, and told apart by a hash.
  struct Long {
    std::unordered_map<std::string, std::uint32_t> tensors;
    std::unordered_map<std::uint32_t, std::string> names;
  };

  [[nodiscard]] const InodeTable& flat() const;
  [[nodiscard]] const Long& long_names() const;

  const TensorIndex& tensors_;
  const InodeTable& tree_;
  const Layout layout_;
  mutable std::once_flag has_flat_;
  mutable std::unique_ptr<InodeTable> own_flat_;  // in layout=tree
  mutable std::once_flag has_long_;
  mutable Long long_;
};

}  // namespace stfs
