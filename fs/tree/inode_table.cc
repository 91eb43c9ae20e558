// Builds the tree once, and finds names in it by a hash table.
#include "fs/tree/inode_table.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "fs/tree/names.h"

namespace stfs {

tl::unexpected<Error> no_such_inode(Ino ino) {
  return fail(ErrorCode::NotFound, ENOENT, fmt::format("inode {}: no such file", ino));
}

InodeTable::InodeTable(const TensorIndex& tensors, Layout layout) : tensor_count_(tensors.size()) {
  nodes_.resize(1 + std::size_t{tensor_count_});
  nodes_.front() = {.file_name = "", .parent = kRootIno, .tensor = kNoTensor};
  grow_slots(nodes_.size());

  // All directories get their names before all files. If a tensor and a directory want the same name (`a`
  // beside `a.b`), the tensor gets the name with a hash, whatever their order in the archive.
  if (layout == Layout::Flat) {
    for (std::uint32_t tensor = 0; tensor < tensor_count_; ++tensor) {
      name_tensor(tensors, tensor, kRootIno, tensors[tensor].name);
    }
  } else {
    std::vector<std::pair<Ino, std::string_view>> places;
    places.reserve(tensor_count_);
    for (std::uint32_t tensor = 0; tensor < tensor_count_; ++tensor) {
      const auto parts = dotted_parts(tensors[tensor].name);
      Ino parent = kRootIno;
      for (const std::string_view part : std::span(parts).first(parts.size() - 1)) {
        parent = directory_named(parent, part);
      }
      places.emplace_back(parent, parts.back());
    }
    for (std::uint32_t tensor = 0; tensor < tensor_count_; ++tensor) {
      name_tensor(tensors, tensor, places[tensor].first, places[tensor].second);
    }
  }
  link_children();
}

std::optional<Ino> InodeTable::find(Ino directory, std::string_view file_name) const {
  const std::uint32_t found = slots_[slot_of(directory, file_name)];
  if (found == 0) return std::nullopt;
  return found;
}

std::span<const std::uint32_t> InodeTable::children(Ino directory) const {
  const std::size_t group = directory == kRootIno ? 0 : directory - kRootIno - tensor_count_;
  return std::span(children_).subspan(child_begin_[group], child_begin_[group + 1] - child_begin_[group]);
}

std::uint32_t InodeTable::subdirectories(Ino ino) const {
  const auto all = children(ino);
  return static_cast<std::uint32_t>(
      std::ranges::count_if(all, [this](std::uint32_t child) { return is_directory(child); }));
}

std::uint64_t InodeTable::slot_of(Ino directory, std::string_view file_name) const {
  const std::uint64_t mask = slots_.size() - 1;
  std::uint64_t slot = XXH3_64bits_withSeed(file_name.data(), file_name.size(), directory) & mask;
  for (;; slot = (slot + 1) & mask) {
    if (slots_[slot] == 0) return slot;
    const Node& there = node(slots_[slot]);
    if (there.parent == directory && there.file_name == file_name) return slot;
  }
}

void InodeTable::grow_slots(std::uint64_t nodes) {
  slots_.assign(std::bit_ceil(2 * nodes + 1), 0);
  for (Ino ino = kRootIno + 1; ino <= nodes_.size(); ++ino) {
    if (node(ino).parent != 0)
      slots_[slot_of(node(ino).parent, node(ino).file_name)] = static_cast<std::uint32_t>(ino);
  }
}

void InodeTable::insert(Ino ino) {
  slots_[slot_of(node(ino).parent, node(ino).file_name)] = static_cast<std::uint32_t>(ino);
}

std::string_view InodeTable::keep(std::string name) {
  return own_names_.emplace_back(std::move(name));
}

Ino InodeTable::directory_named(Ino parent, std::string_view part) {
  const bool is_plain = is_plain_file_name(part);
  std::string encoded = is_plain ? std::string() : file_name_of(part);
  const std::string_view file_name = is_plain ? part : std::string_view(encoded);
  if (const auto there = find(parent, file_name)) return *there;
  if (2 * (nodes_.size() + 1) > slots_.size()) grow_slots(nodes_.size() + 1);
  nodes_.push_back({.file_name = is_plain ? part : keep(std::move(encoded)),
                    .parent = static_cast<std::uint32_t>(parent),
                    .tensor = kNoTensor});
  const Ino ino = nodes_.size();
  insert(ino);
  return ino;
}

void InodeTable::name_tensor(const TensorIndex& tensors, std::uint32_t tensor, Ino parent,
                             std::string_view part) {
  Node& node = nodes_[ino_of_tensor(tensor) - 1];
  node.tensor = tensor;
  const bool is_plain = is_plain_file_name(part);
  std::string_view file_name = is_plain ? part : keep(file_name_of(part));
  // The name may be taken by a directory, or by a name that happens to look like another one's cut form.
  for (std::string seed(tensors[tensor].name); find(parent, file_name); seed += '~') {
    file_name = keep(told_apart(is_plain ? part : std::string_view(file_name_of(part)), seed));
  }
  node.parent = static_cast<std::uint32_t>(parent);
  node.file_name = file_name;
  insert(ino_of_tensor(tensor));
}

void InodeTable::link_children() {
  const std::size_t directories = nodes_.size() - tensor_count_;
  const auto group_of = [this](Ino directory) {
    return directory == kRootIno ? 0 : directory - kRootIno - tensor_count_;
  };
  child_begin_.assign(directories + 1, 0);
  for (Ino ino = kRootIno + 1; ino <= nodes_.size(); ++ino) ++child_begin_[group_of(parent(ino)) + 1];
  for (std::size_t group = 0; group < directories; ++group) child_begin_[group + 1] += child_begin_[group];
  children_.resize(nodes_.size() - 1);
  std::vector<std::uint32_t> next(child_begin_.begin(), child_begin_.end() - 1);
  for (Ino ino = kRootIno + 1; ino <= nodes_.size(); ++ino) {
    children_[next[group_of(parent(ino))]++] = static_cast<std::uint32_t>(ino);
  }
}

}  // namespace stfs
