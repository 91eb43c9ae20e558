// What a disk and the page cache above it hold: the content that programs read, and everything that a loss of
// power could leave in its place. A value: copies are cheap and keep the moment at which they were taken.
//
// The rules are POSIX's and no file system's in particular:
//  - a write changes 4 KiB blocks in the cache; until the file is synced, each of them is on the disk in any
//    of the versions since the last sync, or torn: a mix of those at sectors of 512 bytes;
//  - a file's size and the names in a directory likewise, each on its own and in any order; a sync of the
//    file settles its blocks and its size, only a sync of the directory settles names;
//  - after a sync of a file that failed, the cache counts as clean: programs read the new bytes, the disk has
//    any version, and later syncs succeed without settling what was not written again since;
//  - after a sync of a directory that failed, nothing is settled, but a later one settles the names.
//    (Journaling file systems refuse all later changes after such a failure; one that went on and forgot
//    names would defeat any protocol that relies on them.)
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

/// A thing on the disk, with all the versions in which a crash may leave it.
template <class T>
class Unsettled {
 public:
  Unsettled() = default;
  explicit Unsettled(T settled) : settled_(std::move(settled)) {}

  /// What programs see.
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

/// Inodes are numbered from 1; 0 stands for none.
using InodeNumber = std::uint64_t;

struct DiskInode {
  std::vector<Unsettled<DiskBlockPointer>> blocks;
  Unsettled<std::uint64_t> size_bytes;
  std::int64_t birth_ns = 0;
  std::int64_t mtime_ns = 0;
  DiskAccess access;  // certain as soon as it is changed
  bool is_directory = false;
};

/// A name that a file has. That a rename is atomic is promised, so both names are versions of one entry.
struct DiskName {
  Unsettled<std::shared_ptr<const std::string>> path;  // null: no such entry (not yet, or not any more)
  InodeNumber inode = 0;
  /// Of an entry whose last version is that a younger one has taken its name: in one step with that one's
  /// version. 0: nobody has.
  std::size_t taken_by = 0;  // its place among the names
  std::size_t taken_at = 0;  // its version
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
  /// False where the file ends before the buffer does.
  [[nodiscard]] bool read(InodeNumber inode, std::uint64_t offset, std::span<std::byte> to) const;
  void sync(InodeNumber inode);
  void fail_sync(InodeNumber inode);

  /// The names must be free, or exist, as the call wants it.
  void link(InodeNumber inode, std::string_view path);
  /// A file that has the name `to` loses it in the same step. It must be the older one of both.
  void rename(std::string_view from, std::string_view to);
  /// Directories need not be made. The names below one that was made go with its own.
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
  /// In the order of their appearance, removed ones too.
  [[nodiscard]] const std::vector<DiskName>& names() const { return names_; }

  /// For the one who makes the state after a crash.
  DiskInode& change(InodeNumber inode);
  std::vector<DiskName>& change_names() { return names_; }
  void drop(InodeNumber inode) { inodes_[inode - 1] = std::make_shared<DiskInode>(); }

 private:
  [[nodiscard]] DiskName* find(std::string_view path);

  // Shared between copies until one of them changes it: most of an image is the same at every moment.
  std::vector<std::shared_ptr<DiskInode>> inodes_;
  std::vector<DiskName> names_;
  std::int64_t clock_ns_ = 1'000'000'000;
};

}  // namespace stfs::test
