// Builds a second tree for the names of unserved tensors.
#include "fs/tree/unserved_tensors.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "core/format/tensor_index_builder.h"

namespace stfs {

TensorIndex UnservedTensors::index_of(const Model& model) {
  TensorIndex::Builder builder;
  std::uint32_t position = 0;
  for (const Model::Unserved& tensor : model.unserved()) {
    builder.begin_tensor(tensor.name, position++);
    builder.begin_shape();
  }
  // build() cannot fail: an index names no tensor twice.
  return std::move(builder).build().value_or(TensorIndex());
}

UnservedTensors::UnservedTensors(const Versioned<Model>& model, Layout layout)
    : model_(model), names_(index_of(*model)), table_(names_, layout), flat_(names_, Layout::Flat) {}

const Model::Unserved* UnservedTensors::find_flat(std::string_view file_name) const {
  if (names_.size() == 0) return nullptr;
  const auto at = flat_.find(kRootIno, file_name);
  return at ? &model_->unserved()[number_of(InodeTable::tensor(*at))] : nullptr;
}

const Model::Unserved* UnservedTensors::find(const InodeTable& tree, Ino directory,
                                             std::string_view file_name) const {
  if (names_.size() == 0) return nullptr;
  std::vector<std::string_view> path = {file_name};
  for (Ino above = directory; above != kRootIno; above = tree.parent(above))
    path.push_back(tree.file_name(above));
  std::optional<Ino> at = kRootIno;
  for (auto part = path.rbegin(); part != path.rend() && at; ++part) {
    if (!InodeTable::is_directory(*at)) return nullptr;
    at = table_.find(*at, *part);
  }
  if (!at) return nullptr;
  while (InodeTable::is_directory(*at)) at = table_.child(*at, 0);
  return &model_->unserved()[number_of(InodeTable::tensor(*at))];
}

}  // namespace stfs
