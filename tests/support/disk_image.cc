#include "tests/support/disk_image.h"

#include <algorithm>
#include <cstring>

namespace stfs::test {
namespace {

const DiskBlock& bytes_of(const DiskBlockPointer& block) {
  static const DiskBlock zeros{};
  return block ? *block : zeros;
}

/// The directory of an entry. No entry moves from one directory to another.
std::string_view directory_of(const DiskName& name) {
  for (std::size_t at = name.path.versions(); at-- > 0;) {
    const auto& path = name.path.version(at);
    if (path) return std::string_view(*path).substr(0, path->rfind('/'));
  }
  return {};
}

/// Lengthens the file. A write past the settled size makes the size unsettled again, so after a failed sync
/// the next sync retries the size.
void grow(DiskInode& file, std::uint64_t end) {
  bool is_settled = true;
  for (std::size_t at = 0; at < file.size_bytes.versions(); ++at) {
    is_settled = is_settled && file.size_bytes.version(at) >= end;
  }
  if (!is_settled) file.size_bytes.set(std::max(end, file.size_bytes.now()));
  const std::uint64_t blocks = (file.size_bytes.now() + kDiskBlockBytes - 1) / kDiskBlockBytes;
  if (file.blocks.size() < blocks) file.blocks.resize(blocks);
}

}  // namespace

DiskInode& DiskImage::change(InodeNumber inode) {
  std::shared_ptr<DiskInode>& file = inodes_[inode - 1];
  if (file.use_count() > 1) file = std::make_shared<DiskInode>(*file);
  return *file;
}

InodeNumber DiskImage::create(const DiskAccess& access) {
  inodes_.push_back(std::make_shared<DiskInode>());
  inodes_.back()->access = access;
  inodes_.back()->birth_ns = inodes_.back()->mtime_ns = ++clock_ns_;
  return inodes_.size();
}

void DiskImage::write(InodeNumber inode, std::uint64_t offset, std::span<const std::byte> from) {
  if (from.empty()) return;
  DiskInode& file = change(inode);
  grow(file, offset + from.size());
  file.mtime_ns = ++clock_ns_;
  while (!from.empty()) {
    const std::size_t within = offset % kDiskBlockBytes;
    const std::size_t size = std::min(kDiskBlockBytes - within, from.size());
    Unsettled<DiskBlockPointer>& block = file.blocks[offset / kDiskBlockBytes];
    auto changed = std::make_shared<DiskBlock>(bytes_of(block.now()));
    std::memcpy(changed->data() + within, from.data(), size);
    block.set(std::move(changed));
    from = from.subspan(size);
    offset += size;
  }
}

void DiskImage::resize(InodeNumber inode, std::uint64_t size_bytes) {
  DiskInode& file = change(inode);
  file.mtime_ns = ++clock_ns_;
  if (size_bytes > file.size_bytes.now()) {
    grow(file, size_bytes);
    return;
  }
  // Bytes past the new end read as zeros when the file grows again.
  const std::size_t rest = size_bytes % kDiskBlockBytes;
  for (std::size_t at = size_bytes / kDiskBlockBytes; at < file.blocks.size(); ++at) {
    DiskBlockPointer kept;
    if (rest != 0 && at == size_bytes / kDiskBlockBytes && file.blocks[at].now()) {
      auto cut = std::make_shared<DiskBlock>(*file.blocks[at].now());
      std::fill(cut->begin() + static_cast<std::ptrdiff_t>(rest), cut->end(), std::byte{0});
      kept = std::move(cut);
    }
    if (kept || file.blocks[at].now()) file.blocks[at].set(std::move(kept));
  }
  if (size_bytes != file.size_bytes.now()) file.size_bytes.set(size_bytes);
}

void DiskImage::clone(InodeNumber inode, std::uint64_t offset, InodeNumber source,
                      std::uint64_t source_offset, std::uint64_t size_bytes) {
  const std::shared_ptr<const DiskInode> from = inodes_[source - 1];
  DiskInode& file = change(inode);
  grow(file, offset + size_bytes);
  file.mtime_ns = ++clock_ns_;
  for (std::uint64_t at = 0; at < size_bytes; at += kDiskBlockBytes) {
    file.blocks[(offset + at) / kDiskBlockBytes].set(
        from->blocks[(source_offset + at) / kDiskBlockBytes].now());
  }
}

bool DiskImage::read(InodeNumber inode, std::uint64_t offset, std::span<std::byte> to) const {
  const DiskInode& file = at(inode);
  if (offset + to.size() > file.size_bytes.now()) return false;
  while (!to.empty()) {
    const std::size_t within = offset % kDiskBlockBytes;
    const std::size_t size = std::min(kDiskBlockBytes - within, to.size());
    std::memcpy(to.data(), bytes_of(file.blocks[offset / kDiskBlockBytes].now()).data() + within, size);
    to = to.subspan(size);
    offset += size;
  }
  return true;
}

void DiskImage::sync(InodeNumber inode) {
  DiskInode& file = change(inode);
  file.size_bytes.sync();
  for (auto& block : file.blocks) block.sync();
}

void DiskImage::fail_sync(InodeNumber inode) {
  DiskInode& file = change(inode);
  file.size_bytes.fail_sync();
  for (auto& block : file.blocks) block.fail_sync();
}

DiskName* DiskImage::find(std::string_view path) {
  const auto known = std::ranges::find_if(
      names_, [&](const DiskName& name) { return name.path.now() && *name.path.now() == path; });
  return known == names_.end() ? nullptr : &*known;
}

InodeNumber DiskImage::inode_at(std::string_view path) const {
  const auto known = std::ranges::find_if(
      names_, [&](const DiskName& name) { return name.path.now() && *name.path.now() == path; });
  return known == names_.end() ? 0 : known->inode;
}

std::uint32_t DiskImage::links(InodeNumber inode) const {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      names_, [&](const DiskName& name) { return name.path.now() && name.inode == inode; }));
}

void DiskImage::link(InodeNumber inode, std::string_view path) {
  names_.push_back({.path = {}, .inode = inode});
  names_.back().path.set(std::make_shared<const std::string>(path));
}

void DiskImage::rename(std::string_view from, std::string_view to) {
  DiskName& renamed = *find(from);
  if (DiskName* replaced = find(to); replaced != nullptr) {
    replaced->path.set(nullptr);
    replaced->taken_by = static_cast<std::size_t>(&renamed - names_.data());
    replaced->taken_at = renamed.path.versions();
  }
  renamed.path.set(std::make_shared<const std::string>(to));
}

InodeNumber DiskImage::make_directory(std::string_view path, const DiskAccess& access) {
  const InodeNumber inode = create(access);
  change(inode).is_directory = true;
  link(inode, path);
  return inode;
}

void DiskImage::remove(std::string_view path) {
  find(path)->path.set(nullptr);
}

void DiskImage::sync_names(std::string_view directory) {
  for (DiskName& name : names_) {
    if (directory_of(name) != directory) continue;
    name.path.sync();
    name.taken_by = 0;
  }
}

bool DiskImage::has_content(InodeNumber inode, std::span<const std::byte> content) const {
  const DiskInode& file = at(inode);
  if (file.size_bytes.now() != content.size()) return false;
  for (std::size_t block = 0; !content.empty(); ++block) {
    const std::size_t size = std::min(kDiskBlockBytes, content.size());
    if (std::memcmp(bytes_of(file.blocks[block].now()).data(), content.data(), size) != 0) return false;
    content = content.subspan(size);
  }
  return true;
}

std::vector<std::byte> DiskImage::content(InodeNumber inode) const {
  std::vector<std::byte> bytes(size_bytes(inode));
  static_cast<void>(read(inode, 0, bytes));
  return bytes;
}

}  // namespace stfs::test
