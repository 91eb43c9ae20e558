// Open files: file descriptors, and writes, syncs and resizes through them.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/simulation/kernel.h"
#include "tests/support/disk_user.h"

namespace stfs::test {
namespace {

constexpr std::uint32_t kOpenNeedsNoFlush = 1 << 5;  // FOPEN_NOFLUSH, of the headers of Linux 5.16

bool may_write(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY;
}

}  // namespace

Answer<std::size_t> Kernel::open(Program& program, std::string_view path, int flags) {
  const auto node = walk(program, path);
  if (node.error != 0) return {.error = node.error};
  const std::uint32_t wanted = (flags & O_ACCMODE) == O_RDONLY   ? kMayRead
                               : (flags & O_ACCMODE) == O_WRONLY ? kMayWrite
                                                                 : kMayRead | kMayWrite;
  if (const int error = permit(program, node.value, wanted); error != 0) return {.error = error};
  fuse_open_in body{};
  body.flags = static_cast<std::uint32_t>(flags & ~(O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC));
  Buffer bytes;
  append_to(bytes, body);
  const Reply reply = call(FUSE_OPEN, node.value, asker(program), bytes);
  if (reply.error != 0) return {.error = reply.error};
  const auto opened = taken_from<fuse_open_out>(reply.body);
  const DescriptionPointer file(new Description, [this](Description* last) {
    releases_.push_back(*last);
    delete last;
  });
  file->node = node.value;
  file->handle = opened.fh;
  file->flags = flags;
  file->is_direct = (opened.open_flags & FOPEN_DIRECT_IO) != 0;
  file->keeps_noflush = (opened.open_flags & kOpenNeedsNoFlush) != 0;
  file->serial = ++opens_;
  Inode& inode = inodes_[node.value];
  ++inode.users;
  if ((opened.open_flags & (FOPEN_KEEP_CACHE | FOPEN_DIRECT_IO)) == 0) invalidate_pages(node.value, 0, ~0ULL);
  if (may_write(flags)) inode.writable.push_back(file);
  witness_.opened(program, file);
  if ((flags & O_TRUNC) != 0 && may_write(flags)) {
    if (const int error = set_size(program, node.value, nullptr, 0); error != 0) return {.error = error};
  }
  const auto room = std::ranges::find(program.descriptors, nullptr);
  const auto at = static_cast<std::size_t>(room - program.descriptors.begin());
  if (room == program.descriptors.end()) program.descriptors.emplace_back();
  program.descriptors[at] = file;
  return {.value = at};
}

int Kernel::close(Program& program, std::size_t descriptor) {
  const DescriptionPointer file = std::exchange(program.descriptors[descriptor], nullptr);
  int error = 0;
  if (!file->keeps_noflush && !is_aborted()) {
    const int written = write_back_all(file->node);
    if (is_aborted()) return ENOTCONN;
    fuse_flush_in body{};
    body.fh = file->handle;
    body.lock_owner = program.owner;
    Buffer bytes;
    append_to(bytes, body);
    witness_.flushes(program, *file);
    error = call(FUSE_FLUSH, file->node, asker(program), bytes).error;
    witness_.flushed(program, *file, error);
    if (error == 0) error = written;
  }
  return error;
}

bool Kernel::release_one() {
  if (releases_.empty()) return false;
  const Description file = releases_.front();
  releases_.pop_front();
  --inodes_[file.node].users;
  if (is_aborted()) return true;
  fuse_release_in body{};
  body.fh = file.handle;
  body.flags = static_cast<std::uint32_t>(file.flags);
  Buffer bytes;
  append_to(bytes, body);
  witness_.releases(file);
  call(FUSE_RELEASE, file.node, {}, bytes);
  witness_.released(file);
  return true;
}

int Kernel::write(Program& program, const DescriptionPointer& file, std::uint64_t offset,
                  std::span<const std::byte> bytes) {
  if (!may_write(file->flags)) return EBADF;
  if ((file->flags & O_APPEND) != 0) offset = size_bytes(file->node);
  Inode& inode = inodes_[file->node];
  // A cached write changes the page first.
  if (!file->is_direct) {
    for (std::uint64_t at = 0; at < bytes.size();) {
      const std::uint64_t page = (offset + at) / kPageBytes;
      const std::uint64_t in_page = (offset + at) % kPageBytes;
      const std::uint64_t count = std::min<std::uint64_t>(kPageBytes - in_page, bytes.size() - at);
      auto known = inode.pages.find(page);
      if (known == inode.pages.end() && count == kPageBytes)
        known = inode.pages.emplace(page, Page{.bytes = Buffer(kPageBytes)}).first;
      if (known != inode.pages.end())
        std::ranges::copy(bytes.subspan(at, count),
                          known->second.bytes.begin() + static_cast<std::ptrdiff_t>(in_page));
      at += count;
    }
  }
  int error = 0;
  for (std::uint64_t at = 0; at < bytes.size() && error == 0;) {
    if (is_aborted()) return ENOTCONN;
    const auto part = bytes.subspan(at, std::min<std::uint64_t>(kLargestWrite, bytes.size() - at));
    fuse_write_in body{};
    body.fh = file->handle;
    body.offset = offset + at;
    body.size = static_cast<std::uint32_t>(part.size());
    body.flags = static_cast<std::uint32_t>(file->flags);
    if (file->is_direct) {  // only then the request has the owner
      body.lock_owner = program.owner;
      body.write_flags = FUSE_WRITE_LOCKOWNER;
    }
    Buffer request;
    append_to(request, body);
    request.insert(request.end(), part.begin(), part.end());
    witness_.writes(&program, *file, offset + at, part);
    error = call(FUSE_WRITE, file->node, asker(program), request).error;
    witness_.wrote(*file, error);
    at += part.size();
    if (error == 0) {
      Inode& written = inodes_[file->node];
      written.attributes.size = std::max<std::uint64_t>(written.attributes.size, offset + at);
      written.knows_attributes = false;
    }
  }
  return error;
}

int Kernel::sync(Program& program, const DescriptionPointer& file) {
  const int written = write_back_all(file->node);
  if (is_aborted()) return ENOTCONN;
  fuse_fsync_in body{};
  body.fh = file->handle;
  Buffer bytes;
  append_to(bytes, body);
  witness_.syncs(program, *file);
  const int error = call(FUSE_FSYNC, file->node, asker(program), bytes).error;
  witness_.synced(*file, error);
  return written != 0 ? written : error;
}

int Kernel::set_size(Program& program, Node node, const Description* file, std::uint64_t size) {
  if (is_aborted()) return ENOTCONN;
  fuse_setattr_in body{};
  body.valid = FATTR_SIZE | FATTR_LOCKOWNER;
  body.size = size;
  body.lock_owner = program.owner;
  if (file != nullptr) {
    body.valid |= FATTR_FH;
    body.fh = file->handle;
  }
  Buffer bytes;
  append_to(bytes, body);
  witness_.resizes(program, node, file, size);
  const Reply reply = call(FUSE_SETATTR, node, asker(program), bytes);
  witness_.resized(node, reply.error);
  if (reply.error != 0) return reply.error;
  const auto out = taken_from<fuse_attr_out>(reply.body);
  const std::uint64_t before = inodes_[node].attributes.size;
  learn(node, out.attr, out.attr_valid > 0);
  if (before != out.attr.size) {
    inodes_[node].pages.clear();
  }
  return 0;
}

int Kernel::resize(Program& program, const DescriptionPointer& file, std::uint64_t size) {
  if (!may_write(file->flags)) return EINVAL;
  return set_size(program, file->node, file.get(), size);
}

int Kernel::resize_path(Program& program, std::string_view path, std::uint64_t size) {
  const auto node = walk(program, path);
  if (node.error != 0) return node.error;
  if (const int error = permit(program, node.value, kMayWrite); error != 0) return error;
  return set_size(program, node.value, nullptr, size);
}

}  // namespace stfs::test
