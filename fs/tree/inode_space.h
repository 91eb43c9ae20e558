// All inode numbers of a mount.
//
//   bits 50 to 63   the number of the model's edition (fs/model/mounted_models.h): at first 0 if the
//                   mount shows one model at its root, and 1 if it shows a directory of models.
//   bits 0 to 49    the inode number in that edition. Each tree of files has a range:
//
//     from      up to     meaning                                               numbered by
//     1                   the model's root (FUSE_ROOT_ID)
//     2         2^32 + 1  a tensor: 2 plus its id                               inode_table.h
//     2^36      2^39 - 1  a directory of layout=tree, other than the root       inode_table.h
//     2^39      2^40 - 1  entries of the source directory: in `pretrained`,     fs/read/source_tree.h
//                         and beside the models of a directory of models
//     2^40      2^48 - 1  views: the other entries of `.safetensors`            fs/read/views.h
//     2^48                `.safetensors`
//     2^48 + 1  2^50 - 1  transactions/, committed/, and everything in them     write/transaction_directory.h
//
// A tensor keeps its number when other tensors are made or deleted. Numbers of tensors, and of directories of
// a tree, are never reused.
//
// The mount's root always has number 1 (FUSE_ROOT_ID), whichever edition it shows. In a writable mount of one
// model, the root's `.safetensors` also has one number, so the kernel need not forget its name when a save
// replaces the model. If the kernel has forgotten a directory's name, getcwd(2) fails in this directory, and
// programs that work there fail. In a read-only mount the kernel caches everything below `.safetensors`, and
// has to forget all of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
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

/// Maps the numbers of one model to numbers of the mount, and back.
class InodeSpace {
 public:
  static constexpr unsigned kNumberBits = 14;

  /// The space of a model that is alone in the mount: the numbers of the model are the numbers of the mount.
  InodeSpace() = default;
  /// @param number        less than 2 to the power of kNumberBits.
  /// @param is_the_root   the model's root is the mount's root.
  /// @param is_writable   true if all editions of the mount share the number of `.safetensors`.
  InodeSpace(std::uint32_t number, bool is_the_root, bool is_writable)
      : base_(Ino{number} << kLocalBits), is_the_root_(is_the_root), is_writable_(is_writable) {}

  /// The number in its model.
  static Ino local(Ino ino) { return ino & kLocalMask; }
  /// The number of the edition. Not for the mount's root.
  static std::uint32_t number_of(Ino ino) { return static_cast<std::uint32_t>(ino >> kLocalBits); }
  /// True for the number of a directory that all editions of the mount share.
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

/// The numbers of the directories of layout=tree. Directories keep their numbers when tensors are made or
/// deleted. A directory stays when its last tensor is deleted; rmdir(2) removes it. For one thread.
class DirectoryNumbers {
 public:
  struct Place {
    Ino parent = 0;
    std::string file_name;
    std::shared_ptr<const void> share{};  // of the user who has made the directory; null: of the archive
  };

  /// @param first  the first number to give.
  explicit DirectoryNumbers(Ino first) : next_(first) {}

  /// Returns the number of a directory. Gives the directory a number if it has none.
  /// @param share  counts a new directory for its user until it is removed.
  Ino number(Ino parent, std::string_view file_name, std::shared_ptr<const void> share = {}) {
    const auto [found, is_new] = by_place_.try_emplace({parent, std::string(file_name)}, next_);
    if (is_new) places_.emplace(next_++, Place{parent, std::string(file_name), std::move(share)});
    return found->second;
  }
  /// Moves a directory that has a number, with everything in it.
  void move(Ino directory, Ino parent, std::string_view file_name) {
    const auto before = places_.find(directory);
    auto share = before == places_.end() ? nullptr : std::move(before->second.share);
    remove(directory);
    by_place_.insert_or_assign({parent, std::string(file_name)}, directory);
    places_.insert_or_assign(directory, Place{parent, std::string(file_name), std::move(share)});
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
