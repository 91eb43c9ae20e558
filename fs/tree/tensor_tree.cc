#include "fs/tree/tensor_tree.h"

#include <algorithm>
#include <utility>

#include "core/format/tensor_index_builder.h"
#include "fs/tree/names.h"

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

UnservedTensors::UnservedTensors(const Snapshots& snapshots, Layout layout)
    : snapshots_(snapshots),
      names_(index_of(*snapshots->model)),
      table_(names_, layout),
      flat_(names_, Layout::Flat) {}

const Model::Unserved* UnservedTensors::find_flat(std::string_view file_name) const {
  if (names_.size() == 0) return nullptr;
  const auto at = flat_.find(kRootIno, file_name);
  return at ? &snapshots_->model->unserved()[number_of(InodeTable::tensor(*at))] : nullptr;
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
  return &snapshots_->model->unserved()[number_of(InodeTable::tensor(*at))];
}

std::unique_ptr<Snapshot> TensorTree::next(std::shared_ptr<const Model> model) {
  return layout_ == Layout::Flat ? std::make_unique<Snapshot>(std::move(model), layout_)
                                 : std::make_unique<Snapshot>(std::move(model), numbers());
}

DirectoryNumbers& TensorTree::numbers() {
  if (numbers_) return *numbers_;
  const InodeTable& table = this->table();
  numbers_.emplace(kFirstDirectoryIno);
  for (std::size_t at = 0; at < table.directory_count(); ++at) {
    const Ino directory = table.directory(at);
    numbers_->number(table.parent(directory), table.file_name(directory));
  }
  return *numbers_;
}

std::optional<std::string> TensorTree::name_in(Ino directory, std::string_view file_name) const {
  const InodeTable& table = this->table();
  if (!InodeTable::is_directory(directory) || !table.exists(directory)) return std::nullopt;
  std::string name;
  for (Ino above = directory; above != kRootIno; above = table.parent(above)) {
    const auto part = name_of_file(table.file_name(above));
    if (!part) return std::nullopt;
    name.insert(0, *part + ".");
  }
  const std::size_t dots = static_cast<std::size_t>(std::ranges::count(name, '.'));
  auto last = name_of_file(file_name);
  if (!last) return std::nullopt;
  // A dot would separate directories.
  if (layout_ == Layout::Tree && dots < kMaxDepth && last->find('.') != std::string::npos)
    return std::nullopt;
  return name + *last;
}

Node TensorTree::node(Ino ino) const {
  if (InodeTable::is_directory(ino)) {
    return table().exists(ino) ? Node{.ino = ino, .kind = Node::Kind::Directory} : Node{};
  }
  // The tensor may also be deleted but still open.
  if (!InodeTable::may_be_tensor(ino) || !snapshots_->model->has(InodeTable::tensor(ino))) return {};
  return {.ino = ino, .kind = Node::Kind::Tensor, .tensor = InodeTable::tensor(ino)};
}

Result<Ino> TensorTree::find(Ino directory, std::string_view name) {
  if (directory == kRootIno && name == kViewsDirectory) return kHiddenIno;
  const InodeTable& table = this->table();
  if (const auto found = table.find(directory, name)) return *found;
  return unserved_.why_missing(unserved_.find(table, directory, name));
}

void TensorTree::list(Ino directory, std::uint64_t position, const VisitEntry& visit) const {
  const InodeTable& table = this->table();
  visit_entries(directory, table.parent(directory), table.child_count(directory), position, visit,
                [&](std::size_t at) {
                  const Ino child = table.child(directory, at);
                  return std::pair<std::string_view, Ino>(table.file_name(child), child);
                });
}

}  // namespace stfs
