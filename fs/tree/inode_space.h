// The inode numbers of one model among those of the whole mount.
//
//   bits 50 to 63   the number of the model's file system (fs/model/mounted_models.h). It is 0 first if the mount
//                   shows one model at its root, and 1 if it shows a directory of models.
//   bits 0 to 49    the inode number in that file system. Trees, views and transactions never reach bit 50.
//
// The mount's root always has number 1 (FUSE_ROOT_ID), whichever file system it shows. `.safetensors` there
// has one number, too, in a writable mount: the kernel need not forget its name when a save replaces the
// model. In a directory whose name the kernel has forgotten, getcwd(2) fails, and so do programs that work
// there. In a read-only mount the kernel caches what is below `.safetensors`, and has to forget all of it.
#pragma once

#include <cstdint>

#include "fs/tree/directory.h"
#include "fs/tree/inode_table.h"

namespace stfs {

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

}  // namespace stfs
