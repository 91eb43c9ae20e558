// Finds and lists the tensors' files.
#include "fs/tree/tensor_tree.h"

#include <utility>

#include "fs/tree/names.h"

namespace stfs {

TensorTree::TensorTree(const Model& model, Layout layout)
    : table_(model.tensors(), model.ids(), layout), unserved_(model, layout) {}

Node TensorTree::node(Ino ino) const {
  if (!table_.exists(ino)) return {};
  if (InodeTable::is_directory(ino)) return {.ino = ino, .kind = Node::Kind::Directory};
  return {.ino = ino, .kind = Node::Kind::Tensor, .tensor = InodeTable::tensor(ino)};
}

Result<Ino> TensorTree::find(Ino directory, std::string_view name) {
  if (directory == kRootIno && name == kViewsDirectory) return kHiddenIno;
  if (const auto found = table_.find(directory, name)) return *found;
  return unserved_.why_missing(unserved_.find(table_, directory, name));
}

void TensorTree::list(Ino directory, std::uint64_t position, const VisitEntry& visit) const {
  visit_entries(directory, table_.parent(directory), table_.child_count(directory), position, visit,
                [&](std::size_t at) {
                  const Ino child = table_.child(directory, at);
                  return std::pair<std::string_view, Ino>(table_.file_name(child), child);
                });
}

}  // namespace stfs
