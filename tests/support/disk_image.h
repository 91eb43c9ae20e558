// A disk and the page cache above it: the content that programs read, and every content that a loss of power
// can leave. A value: copies are cheap, and a copy keeps the state of its moment.
//
// The rules are POSIX's and no file system's in particular:
//  - a write changes 4 KiB blocks in the cache; until the file is synced, the disk has each block in any
//    version since the last sync, or torn: a mix of these versions at sectors of 512 bytes;
//  - a file's size and the names in a directory have versions in the same way, each independently and in any
//    order; a sync of the file settles its blocks and its size, only a sync of the directory settles names;
//  - after a failed sync of a file, the cache is clean: programs read the new bytes, the disk has any
//    version, and later syncs succeed without settling blocks that were not written again since;
//  - after a failed sync of a directory, nothing is settled, but a later sync settles the names.
//    (Journaling file systems refuse all later changes after such a failure. A file system that continued and
//    forgot names would defeat any protocol that relies on them.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/disk_user.h"

namespace stfs::test {

inline constexpr std::size_t kDiskBlockBytes = 4096;
inline constexpr std::size_t kSectorBytes = 512;

using DiskBlock = std::array<std::byte, kDiskBlockBytes>;
/// Null reads as zeros.
using DiskBlockPointer = std::shared_ptr<const DiskBlock>;

/// A block, size or name on the disk, with all versions that a crash may leave.
template <class T>
class Unsettled {
 public:
  Unsettled() = default;
  explicit Unsettled(T settled) : settled_(std::move(settled)) {}

  /// The version that programs see.
  [[nodiscard]] const T& now() const { return newer_.empty() ? settled_ : newer_.back(); }
  void set(T value) {
    newer_.push_back(std::move(value));
    is_dirty_ = true;
  }
  void sync() {
    if (!is_dirty_) return;
    settled_ = std::move(newer_.back());
    newer_.clear();
    is_dirty_ = false;
  }
  void fail_sync() { is_dirty_ = false; }

  [[nodiscard]] std::size_t versions() const { return 1 + newer_.size(); }
  /// 0 is the oldest.
  [[nodiscard]] const T& version(std::size_t at) const { return at == 0 ? settled_ : newer_[at - 1]; }

 private:
  T settled_{};
  std::vector<T> newer_;
  bool is_dirty_ = false;
};

/// Inodes are numbered from 1; 0 is no inode.
using InodeNumber = std::uint64_t;

struct DiskInode {
  std::vector<Unsettled<DiskBlockPointer>> blocks;
  Unsettled<std::uint64_t> size_bytes;
  std::int64_t birth_ns = 0;
  std::int64_t mtime_ns = 0;
  DiskAccess access;  // settled as soon as it is changed
  bool is_directory = false;
};

/// A name of a file. A rename is atomic, so both names are versions of one entry.
struct DiskName {
  Unsettled<std::shared_ptr<const std::string>> path;  // null: no such entry (not yet, or not any more)
  InodeNumber inode = 0;
  /// Set if a younger entry has taken this entry's name by a rename. The last version of this entry and that
  /// version of the younger entry happen in one step. 0: the name was not taken.
  std::size_t taken_by = 0;  // the younger entry's place among the names
  std::size_t taken_at = 0;  // the younger entry's version
};

class DiskImage {
 public:
  InodeNumber create(const DiskAccess& access = {});
  void write(InodeNumber inode, std::uint64_t offset, std::span<const std::byte> from);
  /// Cuts the file, or lengthens it with zeros.
  void resize(InodeNumber inode, std::uint64_t size_bytes);
  /// Shares whole blocks, as FICLONERANGE does.
  void clone(InodeNumber inode, std::uint64_t offset, InodeNumber source, std::uint64_t source_offset,
             std::uint64_t size_bytes);
  /// False if the file ends before the buffer is full.
  [[nodiscard]] bool read(InodeNumber inode, std::uint64_t offset, std::span<std::byte> to) const;
  void sync(InodeNumber inode);
  void fail_sync(InodeNumber inode);

  /// The caller ensures that a new name is free and that an old name exists.
  void link(InodeNumber inode, std::string_view path);
  /// A file with the name `to` loses it in the same step. The entry of that name must be older than `from`.
  void rename(std::string_view from, std::string_view to);
  /// A path may name directories that were never made. If a crash loses the name of a made directory, the
  /// names below it are lost also.
  InodeNumber make_directory(std::string_view path, const DiskAccess& access);
  void remove(std::string_view path);
  void sync_names(std::string_view directory);
  [[nodiscard]] InodeNumber inode_at(std::string_view path) const;
  /// Names that programs see.
  [[nodiscard]] std::uint32_t links(InodeNumber inode) const;

  [[nodiscard]] std::uint64_t size_bytes(InodeNumber inode) const { return at(inode).size_bytes.now(); }
  [[nodiscard]] bool has_content(InodeNumber inode, std::span<const std::byte> content) const;
  [[nodiscard]] std::vector<std::byte> content(InodeNumber inode) const;

  [[nodiscard]] const DiskInode& at(InodeNumber inode) const { return *inodes_[inode - 1]; }
  [[nodiscard]] InodeNumber inodes() const { return inodes_.size(); }
  /// In the order of their creation, with removed names.
  [[nodiscard]] const std::vector<DiskName>& names() const { return names_; }

  /// For disk_crash.h, which makes the state after a crash.
  DiskInode& change(InodeNumber inode);
  std::vector<DiskName>& change_names() { return names_; }
  void drop(InodeNumber inode) { inodes_[inode - 1] = std::make_shared<DiskInode>(); }

 private:
  [[nodiscard]] DiskName* find(std::string_view path);

  // Copies of the image share an inode until one copy changes it: most of an image stays the same.
  std::vector<std::shared_ptr<DiskInode>> inodes_;
  std::vector<DiskName> names_;
  std::int64_t clock_ns_ = 1'000'000'000;
};

}  // namespace stfs::test
