// The tree of a mount: inode numbers, file names, directories.
//
// A number (inode_space.h) is never reused and the table lives as long as the mount, so the kernel's FORGET
// needs no action. The table is immutable once built; any number of threads may read it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/format/tensor_id.h"
#include "core/format/tensor_index.h"
#include "fs/tree/inode_space.h"

namespace stfs {

/// The error for an inode number that no file has: ENOENT.
tl::unexpected<Error> no_such_inode(Ino ino);
/// Throws the same error as an exception, for a number that the caller should have checked. Handlers turn the
/// exception into EIO.
[[noreturn]] void throw_no_such_inode(Ino ino);

enum class Layout : std::uint8_t {
  Flat,  // every tensor is in the root, under its name
  Tree,  // the dots of the names become directories
};

class InodeTable {
 public:
  /// The index must outlive the table, which refers to the index's names.
  InodeTable(const TensorIndex& tensors, TensorIds ids, Layout layout);
  /// A table of an index that follows an earlier index. All directories keep their numbers, also directories
  /// without a tensor. New directories get numbers.
  InodeTable(const TensorIndex& tensors, TensorIds ids, Layout layout, DirectoryNumbers& numbers);
  /// A table of an index whose ids are the positions.
  InodeTable(const TensorIndex& tensors, Layout layout)
      : InodeTable(tensors, TensorIds(tensors.size()), layout) {}

  // For numbers that are not in the table, find() finds nothing, child_count() is 0, and the other functions
  // throw.
  /// Returns the child with this file name, or nothing.
  [[nodiscard]] std::optional<Ino> find(Ino directory, std::string_view file_name) const;
  /// The number of files and directories in a directory.
  [[nodiscard]] std::size_t child_count(Ino directory) const { return children(directory).size(); }
  /// Returns the child at a place in the order of the archive. readdir lists the children in this order.
  [[nodiscard]] Ino child(Ino directory, std::size_t at) const { return ino_of(children(directory)[at]); }
  [[nodiscard]] bool exists(Ino ino) const;
  [[nodiscard]] static bool is_directory(Ino ino) { return ino == kRootIno || ino >= kFirstDirectoryIno; }
  /// Only for inodes that are not directories: throws for numbers that no tensor can have.
  [[nodiscard]] static TensorId tensor(Ino ino) {
    if (!may_be_tensor(ino)) throw_no_such_inode(ino);
    return TensorId{static_cast<std::uint32_t>(ino - kFirstTensorIno)};
  }
  /// True if a tensor can have the number.
  [[nodiscard]] static bool may_be_tensor(Ino ino) { return ino >= kFirstTensorIno && ino <= kLastTensorIno; }
  [[nodiscard]] static Ino ino_of_tensor(TensorId tensor) { return kFirstTensorIno + number_of(tensor); }
  [[nodiscard]] std::string_view file_name(Ino ino) const { return nodes_[place_of(ino)].file_name; }
  [[nodiscard]] Ino parent(Ino ino) const { return ino_of(nodes_[place_of(ino)].parent); }
  /// The number of directories directly in this one. A directory's link count includes them.
  [[nodiscard]] std::uint32_t subdirectories(Ino ino) const;
  [[nodiscard]] std::uint64_t size() const { return nodes_.size(); }
  /// The number of directories, without the root.
  [[nodiscard]] std::size_t directory_count() const { return nodes_.size() - 1 - ids_.size(); }
  /// Returns one of these directories. Each directory is listed after its parent.
  [[nodiscard]] Ino directory(std::size_t at) const {
    return numbers_.empty() ? kFirstDirectoryIno + at : numbers_[at];
  }

 private:
  void build(const TensorIndex& tensors, Layout layout, DirectoryNumbers* numbers);
  /// The place of a node in nodes_: the root, then the tensors by position, then the other directories.
  using Place = std::uint32_t;
  static constexpr Place kRoot = 0;
  struct Node {
    std::string_view file_name;
    Place parent = kRoot;
  };
  [[nodiscard]] static Place place_of_tensor(std::uint32_t position) { return 1 + position; }
  /// Throws for a number that is not in the table.
  [[nodiscard]] Place place_of(Ino ino) const;
  [[nodiscard]] Ino ino_of(Place place) const;
  /// Returns the place of a directory among all directories.
  [[nodiscard]] std::size_t group_of(Place directory) const {
    return directory == kRoot ? 0 : directory - ids_.size();
  }
  [[nodiscard]] std::span<const Place> children(Ino directory) const;
  [[nodiscard]] std::uint64_t slot_of(Place directory, std::string_view file_name) const;
  [[nodiscard]] std::optional<Place> find_in(Place directory, std::string_view file_name) const;
  void grow_slots(std::uint64_t nodes);
  void insert(Place place);
  std::string_view keep(std::string name);
  Place directory_named(Place parent, std::string_view part, DirectoryNumbers* numbers);
  Place add_directory(Place parent, std::string_view file_name);
  /// Adds a directory that has a number, unless it is in the table already.
  void add_numbered(Ino directory, const DirectoryNumbers& numbers);
  void name_tensor(const TensorIndex& tensors, std::uint32_t position, Place parent, std::string_view part);
  void link_children();

  const TensorIds ids_;
  std::vector<Node> nodes_;
  std::vector<Ino> numbers_;  // numbers of the directories; empty: they count from kFirstDirectoryIno
  std::unordered_map<Ino, Place> numbered_places_;  // the reverse
  std::deque<std::string> own_names_;       // encoded names; names that need no encoding stay in the index
  std::vector<Place> slots_;                // hash table by (parent, file name), open addressing; 0 is free
  std::vector<Place> children_;             // grouped by directory
  std::vector<std::uint32_t> child_begin_;  // group g has children_[begin[g] .. begin[g + 1])
};

}  // namespace stfs
