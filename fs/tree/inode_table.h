// The tree of a mount: inode numbers, file names, directories.
//
// The root is 1 (FUSE_ROOT_ID). A tensor is 2 plus its position in the archive. The other directories follow
// the tensors. A number is never reused and the table lives as long as the mount, so the kernel's FORGET
// needs no action. The table is immutable once built; any number of threads may read it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/format/tensor_index.h"

namespace stfs {

using Ino = std::uint64_t;
inline constexpr Ino kRootIno = 1;

/// The error for an inode number that no file has: ENOENT.
tl::unexpected<Error> no_such_inode(Ino ino);

enum class Layout : std::uint8_t {
  Flat,  // every tensor lies in the root, under its name
  Tree,  // the dots of the names become directories
};

class InodeTable {
 public:
  /// The index must outlive the table, which refers to the index's names.
  InodeTable(const TensorIndex& tensors, Layout layout);

  /// The child with that file name, or nothing.
  [[nodiscard]] std::optional<Ino> find(Ino directory, std::string_view file_name) const;
  /// The inode numbers of the children, in the order of the archive. readdir lists them in this order.
  [[nodiscard]] std::span<const std::uint32_t> children(Ino directory) const;
  [[nodiscard]] bool exists(Ino ino) const { return ino >= kRootIno && ino <= nodes_.size(); }
  [[nodiscard]] bool is_directory(Ino ino) const { return node(ino).tensor == kNoTensor; }
  /// The tensor's position in the index. Only for inodes that are not directories.
  [[nodiscard]] std::uint32_t tensor(Ino ino) const { return node(ino).tensor; }
  [[nodiscard]] static Ino ino_of_tensor(std::uint32_t tensor) { return kRootIno + 1 + tensor; }
  [[nodiscard]] std::string_view file_name(Ino ino) const { return node(ino).file_name; }
  [[nodiscard]] Ino parent(Ino ino) const { return node(ino).parent; }
  /// The number of directories directly in this one. A directory's link count includes them.
  [[nodiscard]] std::uint32_t subdirectories(Ino ino) const;
  [[nodiscard]] std::uint64_t size() const { return nodes_.size(); }
  /// The range [first, second) of the directories' inode numbers, without the root. A directory's number is
  /// higher than its parent's.
  [[nodiscard]] std::pair<Ino, Ino> directories() const {
    return {ino_of_tensor(tensor_count_), nodes_.size() + 1};
  }

 private:
  static constexpr std::uint32_t kNoTensor = ~std::uint32_t{0};
  struct Node {
    std::string_view file_name;
    std::uint32_t parent = 0;
    std::uint32_t tensor = kNoTensor;
  };
  [[nodiscard]] const Node& node(Ino ino) const { return nodes_[ino - 1]; }
  [[nodiscard]] std::uint64_t slot_of(Ino directory, std::string_view file_name) const;
  void grow_slots(std::uint64_t nodes);
  void insert(Ino ino);
  std::string_view keep(std::string name);
  Ino directory_named(Ino parent, std::string_view part);
  void name_tensor(const TensorIndex& tensors, std::uint32_t tensor, Ino parent, std::string_view part);
  void link_children();

  std::vector<Node> nodes_;                 // nodes_[ino - 1]
  std::deque<std::string> own_names_;       // encoded names; names that need no encoding stay in the index
  std::vector<std::uint32_t> slots_;        // hash table by (parent, file name), open addressing; 0 is free
  std::vector<std::uint32_t> children_;     // grouped by directory
  std::vector<std::uint32_t> child_begin_;  // directory d (0 = root) has children_[begin[d] .. begin[d+1])
  std::uint32_t tensor_count_ = 0;
};

}  // namespace stfs
