// The tree that a mount shows at a model's root: one file for each tensor.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/model/model.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/unserved_tensors.h"

namespace stfs {

/// Immutable: any thread may call.
class TensorTree final : public Directory {
 public:
  /// The model must outlive the tree.
  TensorTree(const Model& model, Layout layout);

  [[nodiscard]] Node node(Ino ino) const override;
  /// Also finds `.safetensors` in the root, which list() leaves out: a copy of the tree contains each tensor
  /// once.
  Result<Ino> find(Ino directory, std::string_view name) override;
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;

  [[nodiscard]] const InodeTable& table() const { return table_; }
  [[nodiscard]] const UnservedTensors& unserved() const { return unserved_; }

 private:
  const InodeTable table_;
  const UnservedTensors unserved_;
};

}  // namespace stfs
