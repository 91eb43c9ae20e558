// All inode numbers of a mount.
//
//   bits 50 to 63   the number of the model's file system (fs/model/mounted_models.h): at first 0 if the
//                   mount shows one model at its root, and 1 if it shows a directory of models.
//   bits 0 to 49    the inode number in that file system. Each tree of files has a range:
//
//     from      up to     stands for                                            numbered by
//     1                   the model's root (FUSE_ROOT_ID)
//     2         2^32 + 1  a tensor: 2 plus its id                               inode_table.h
//     2^36      2^39 - 1  a directory of layout=tree, other than the root       inode_table.h
//     2^39      2^40 - 1  what the source directory has: in `pretrained`, and   fs/read/source_tree.h
//                         beside the models of a directory of models
//     2^40      2^48 - 1  views: the other entries of `.safetensors`            fs/read/views.h
//     2^48                `.safetensors`
//     2^48 + 1  2^50 - 1  transactions/, committed/, and what is in them        write/transaction_directory.h
//
// A tensor keeps its number when other tensors come and go. Numbers of tensors, and of directories of a tree,
// are never reused.
//
// The mount's root always has number 1 (FUSE_ROOT_ID), whichever file system it shows. `.safetensors` there
// has one number, too, in a writable mount: the kernel need not forget its name when a save replaces the
// model. In a directory whose name the kernel has forgotten, getcwd(2) fails, and so do programs that work
// there. In a read-only mount the kernel caches what is below `.safetensors`, and has to forget all of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace stfs {

using Ino = std::uint64_t;
inline constexpr Ino kRootIno = 1;
inline constexpr Ino kFirstTensorIno = 2;
inline constexpr Ino kLastTensorIno = kFirstTensorIno + ~std::uint32_t{0};
inline constexpr Ino kFirstDirectoryIno = Ino{1} << 36U;
/// The directory `.safetensors`.
inline constexpr Ino kHiddenIno = Ino{1} << 48U;

/// The numbers of one model among those of the whole mount.
class InodeSpace {
 public:
  static constexpr unsigned kNumberBits = 14;

  /// The space of a file system that is alone: both kinds of numbers are the same.
  InodeSpace() = default;
  /// @param number        less than 2 to the power of kNumberBits.
  /// @param is_the_root   the model's root is the mount's root.
  /// @param is_writable   its `.safetensors` is then the mount's, too.
  InodeSpace(std::uint32_t number, bool is_the_root, bool is_writable)
      : base_(Ino{number} << kLocalBits), is_the_root_(is_the_root), is_writable_(is_writable) {}

  /// The number in its model.
  static Ino local(Ino ino) { return ino & kLocalMask; }
  /// The number of the file system. Not for the mount's root.
  static std::uint32_t number_of(Ino ino) { return static_cast<std::uint32_t>(ino >> kLocalBits); }
  /// Whether a number is that of a directory which all file systems of the mount share.
  [[nodiscard]] bool is_shared(Ino ino) const {
    return is_the_root_ && (ino == kRootIno || (is_writable_ && ino == kHiddenIno));
  }
  /// The number in the mount.
  [[nodiscard]] Ino in_mount(Ino local) const { return is_shared(local) ? local : base_ | local; }

 private:
  static constexpr unsigned kLocalBits = 64 - kNumberBits;
  static constexpr Ino kLocalMask = (Ino{1} << kLocalBits) - 1;

  Ino base_ = 0;
  bool is_the_root_ = true;
  bool is_writable_ = true;
};

/// The numbers of the directories of layout=tree, which they keep while tensors come and go. A directory
/// stays when its last tensor has gone: rmdir(2) removes it. For one thread.
class DirectoryNumbers {
 public:
  struct Place {
    Ino parent = 0;
    std::string file_name;
  };

  /// @param first  the first number to give.
  explicit DirectoryNumbers(Ino first) : next_(first) {}

  /// The number of a directory. Gives it one if it has none.
  Ino number(Ino parent, std::string_view file_name) {
    const auto [found, is_new] = by_place_.try_emplace({parent, std::string(file_name)}, next_);
    if (is_new) places_.emplace(next_++, Place{parent, std::string(file_name)});
    return found->second;
  }
  /// Moves a directory that has a number, with all that lies in it.
  void move(Ino directory, Ino parent, std::string_view file_name) {
    remove(directory);
    by_place_.insert_or_assign({parent, std::string(file_name)}, directory);
    places_.insert_or_assign(directory, Place{parent, std::string(file_name)});
  }
  void remove(Ino directory) {
    const auto found = places_.find(directory);
    if (found == places_.end()) return;
    by_place_.erase({found->second.parent, found->second.file_name});
    places_.erase(found);
  }
  /// All directories, by number.
  [[nodiscard]] const std::map<Ino, Place>& all() const { return places_; }

 private:
  Ino next_;
  std::map<std::pair<Ino, std::string>, Ino> by_place_;
  std::map<Ino, Place> places_;
};

}  // namespace stfs
