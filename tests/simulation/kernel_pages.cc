// The page cache: pages are read, mapped, written back and dropped.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "tests/simulation/kernel.h"

namespace stfs::test {

Answer<Buffer> Kernel::read_page(const Asker& asker, const Description& file, std::uint64_t page) {
  const std::uint64_t size = size_bytes(file.node);
  if (page * kPageBytes >= size) return {};
  fuse_read_in body{};
  body.fh = file.handle;
  body.offset = page * kPageBytes;
  body.size = kPageBytes;
  Buffer bytes;
  append_to(bytes, body);
  Reply reply = call(FUSE_READ, file.node, asker, bytes);
  if (reply.error != 0) return {.error = reply.error};
  // A short page is the end of the file.
  auto& known = inodes_[file.node].attributes.size;
  if (reply.body.size() < kPageBytes) known = std::min<std::uint64_t>(known, body.offset + reply.body.size());
  reply.body.resize(kPageBytes);
  return {.value = std::move(reply.body)};
}

Answer<Buffer> Kernel::read(Program& program, const DescriptionPointer& file, std::uint64_t offset,
                            std::uint64_t size) {
  if ((file->flags & O_ACCMODE) == O_WRONLY) return {.error = EBADF};
  // A read past the known end asks for the attributes first.
  if (offset + size > size_bytes(file->node) && !inodes_[file->node].knows_attributes) {
    if (const int error = get_attributes(program, file->node); error != 0) return {.error = error};
  }
  Answer<Buffer> answer;
  for (std::uint64_t at = offset; at < offset + size;) {
    const std::uint64_t end_of_file = size_bytes(file->node);
    if (at >= end_of_file) break;
    const std::uint64_t page = at / kPageBytes;
    auto known = inodes_[file->node].pages.find(page);
    if (known == inodes_[file->node].pages.end()) {
      auto fetched = read_page(asker(program), *file, page);
      if (fetched.error != 0) return {.error = fetched.error};
      known = inodes_[file->node].pages.insert_or_assign(page, Page{.bytes = std::move(fetched.value)}).first;
    }
    const std::uint64_t end = std::min({offset + size, size_bytes(file->node), (page + 1) * kPageBytes});
    if (end <= at) break;
    const auto from = known->second.bytes.begin() + static_cast<std::ptrdiff_t>(at % kPageBytes);
    answer.value.insert(answer.value.end(), from, from + static_cast<std::ptrdiff_t>(end - at));
    at = end;
  }
  return answer;
}

int Kernel::write_back(Node node, std::uint64_t page) {
  if (is_aborted()) return ENOTCONN;
  Inode& inode = inodes_[node];
  const auto known = inode.pages.find(page);
  if (known == inode.pages.end() || !known->second.is_dirty) return 0;
  std::erase_if(inode.writable, [](const auto& file) { return file.expired(); });
  if (inode.writable.empty()) return EIO;
  const DescriptionPointer file = inode.writable.front().lock();
  known->second.is_dirty = false;
  const std::uint64_t offset = page * kPageBytes;
  const std::uint64_t end = std::min(size_bytes(node), offset + kPageBytes);
  if (offset >= end) return 0;
  Buffer bytes(known->second.bytes.begin(),
               known->second.bytes.begin() + static_cast<std::ptrdiff_t>(end - offset));
  fuse_write_in body{};
  body.fh = file->handle;
  body.offset = offset;
  body.size = static_cast<std::uint32_t>(bytes.size());
  body.write_flags = FUSE_WRITE_CACHE;
  body.flags = static_cast<std::uint32_t>(file->flags);
  Buffer request;
  append_to(request, body);
  request.insert(request.end(), bytes.begin(), bytes.end());
  witness_.writes(nullptr, *file, offset, bytes);
  const int error = call(FUSE_WRITE, node, {}, request).error;
  witness_.wrote(*file, error);
  return error;
}

int Kernel::write_back_all(Node node) {
  std::vector<std::uint64_t> dirty;
  for (const auto& [page, content] : inodes_[node].pages) {
    if (content.is_dirty) dirty.push_back(page);
  }
  int error = 0;
  for (const std::uint64_t page : dirty) {
    if (const int failed = write_back(node, page); failed != 0) error = failed;
  }
  return error;
}

void Kernel::write_back_some(std::size_t which) {
  std::vector<std::pair<Node, std::uint64_t>> dirty;
  for (const auto& [node, inode] : inodes_) {
    for (const auto& [page, content] : inode.pages) {
      if (content.is_dirty) dirty.emplace_back(node, page);
    }
  }
  if (dirty.empty()) return;
  const auto [node, page] = dirty[which % dirty.size()];
  write_back(node, page);
}

int Kernel::map(Program& program, const DescriptionPointer& file) {
  if ((file->flags & O_ACCMODE) != O_RDWR) return EACCES;
  if (file->is_direct) return ENODEV;
  program.mappings.push_back(file);
  return 0;
}

int Kernel::store(Program& program, const DescriptionPointer& file, std::uint64_t offset,
                  std::span<const std::byte> bytes) {
  for (std::uint64_t at = 0; at < bytes.size();) {
    const std::uint64_t page = (offset + at) / kPageBytes;
    const std::uint64_t in_page = (offset + at) % kPageBytes;
    const std::uint64_t count = std::min<std::uint64_t>(kPageBytes - in_page, bytes.size() - at);
    if (page * kPageBytes >= size_bytes(file->node)) return EFAULT;  // SIGBUS
    if (!inodes_[file->node].pages.contains(page)) {
      auto fetched = read_page(asker(program), *file, page);
      if (fetched.error != 0) return EFAULT;
      inodes_[file->node].pages.insert_or_assign(page, Page{.bytes = std::move(fetched.value)});
    }
    Page& known = inodes_[file->node].pages[page];
    std::ranges::copy(bytes.subspan(at, count), known.bytes.begin() + static_cast<std::ptrdiff_t>(in_page));
    known.is_dirty = true;
    at += count;
  }
  return 0;
}

int Kernel::unmap(Program& program, std::size_t mapping) {
  const DescriptionPointer file = program.mappings[mapping];
  program.mappings.erase(program.mappings.begin() + static_cast<std::ptrdiff_t>(mapping));
  return is_aborted() ? 0 : write_back_all(file->node);
}

void Kernel::invalidate_pages(Node node, std::uint64_t from, std::uint64_t end) {
  const auto in_range = [&](std::uint64_t page) {
    return (page + 1) * kPageBytes > from && page * kPageBytes < end;
  };
  // Dirty pages are written back before they are dropped.
  std::vector<std::uint64_t> dirty;
  for (const auto& [page, content] : inodes_[node].pages) {
    if (in_range(page) && content.is_dirty) dirty.push_back(page);
  }
  for (const std::uint64_t page : dirty) write_back(node, page);
  std::erase_if(inodes_[node].pages,
                [&](const auto& page) { return in_range(page.first) && !page.second.is_dirty; });
}

bool Kernel::is_dirty(Node node, std::uint64_t offset, std::uint64_t size) const {
  const auto found = inodes_.find(node);
  if (found == inodes_.end()) return false;
  return std::ranges::any_of(found->second.pages, [&](const auto& page) {
    return page.second.is_dirty && (page.first + 1) * kPageBytes > offset &&
           page.first * kPageBytes < offset + size;
  });
}

std::uint64_t Kernel::size_bytes(Node node) const {
  const auto found = inodes_.find(node);
  return found == inodes_.end() ? 0 : found->second.attributes.size;
}

}  // namespace stfs::test
