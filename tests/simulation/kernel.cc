// System calls become requests.
#include "tests/simulation/kernel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <ostream>
#include <stdexcept>

namespace stfs::test {
namespace {

constexpr std::uint32_t kOpenNeedsNoFlush = 1 << 5;  // FOPEN_NOFLUSH, of the headers of Linux 5.16
constexpr std::uint32_t kLargestWrite = 8 * kPageBytes;

std::string_view name_of(std::uint32_t opcode) {
  switch (opcode) {
    case FUSE_LOOKUP: return "LOOKUP";
    case FUSE_GETATTR: return "GETATTR";
    case FUSE_SETATTR: return "SETATTR";
    case FUSE_MKDIR: return "MKDIR";
    case FUSE_UNLINK: return "UNLINK";
    case FUSE_RMDIR: return "RMDIR";
    case FUSE_RENAME2: return "RENAME";
    case FUSE_OPEN: return "OPEN";
    case FUSE_READ: return "READ";
    case FUSE_WRITE: return "WRITE";
    case FUSE_FLUSH: return "FLUSH";
    case FUSE_FSYNC: return "FSYNC";
    case FUSE_RELEASE: return "RELEASE";
    case FUSE_GETXATTR: return "GETXATTR";
    case FUSE_OPENDIR: return "OPENDIR";
    case FUSE_READDIRPLUS: return "READDIRPLUS";
    case FUSE_RELEASEDIR: return "RELEASEDIR";
    case FUSE_INIT: return "INIT";
    default: return "a request";
  }
}

bool may_write(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY;
}

}  // namespace

void Kernel::mount(const fuse_lowlevel_ops& operations, void* userdata) {
  inodes_.clear();
  names_.clear();
  releases_.clear();
  wire_ = std::make_unique<FuseWire>(
      operations, userdata, [this](int code, std::span<const std::byte> body) { notified(code, body); });
  fuse_init_in init{};
  init.major = FUSE_KERNEL_VERSION;
  init.minor = FUSE_KERNEL_MINOR_VERSION;
  init.max_readahead = kLargestWrite;
  init.flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ATOMIC_O_TRUNC | FUSE_DO_READDIRPLUS |
               FUSE_READDIRPLUS_AUTO | FUSE_PARALLEL_DIROPS | FUSE_EXPLICIT_INVAL_DATA |
               FUSE_AUTO_INVAL_DATA | FUSE_WRITEBACK_CACHE | FUSE_MAX_PAGES | FUSE_NO_OPEN_SUPPORT;
  Buffer body;
  append_to(body, init);
  call(FUSE_INIT, 0, {}, body);
  inodes_[FUSE_ROOT_ID].lookups = 1;
}

void Kernel::abort() {
  if (wire_) wire_->abort();
}

void Kernel::unmount() {
  while (release_one()) {
  }
  wire_.reset();
  inodes_.clear();
  names_.clear();
}

Asker Kernel::asker(const Program& program) {
  return {.uid = program.uid, .gid = program.uid, .thread = static_cast<std::uint32_t>(program.id)};
}

Reply Kernel::call(std::uint32_t opcode, Node node, const Asker& asker, std::span<const std::byte> body) {
  ++requests_;
  if (is_aborted()) return {.error = ENOTCONN, .body = {}};
  const std::uint64_t request = wire_->send(opcode, node, asker, body);
  for (;;) {
    if (auto reply = wire_->take(request)) {
      if (trace_ != nullptr)
        *trace_ << fmt::format("      {} of {:#x} by {}: {}, {} bytes\n", name_of(opcode), node, asker.thread,
                               reply->error, reply->body.size());
      return std::move(*reply);
    }
    if (!wait_()) throw std::runtime_error("a request is never answered: opcode " + std::to_string(opcode));
  }
}

void Kernel::learn(Node node, const fuse_attr& attributes, bool may_keep) {
  Inode& inode = inodes_[node];
  inode.attributes = attributes;
  inode.knows_attributes = may_keep;
}

Answer<Node> Kernel::look_up(Program& program, Node parent, std::string_view name) {
  const Name key(parent, name);
  if (const auto known = names_.find(key); known != names_.end()) {
    if (known->second == 0) return {.error = ENOENT};
    return {.value = known->second};
  }
  Buffer body;
  append_name(body, name);
  const Reply reply = call(FUSE_LOOKUP, parent, asker(program), body);
  if (reply.error != 0) return {.error = reply.error};
  const auto entry = taken_from<fuse_entry_out>(reply.body);
  const bool may_keep = entry.entry_valid > 0;
  if (entry.nodeid == 0) {
    if (may_keep) names_[key] = 0;
    return {.error = ENOENT};
  }
  ++inodes_[entry.nodeid].lookups;
  learn(entry.nodeid, entry.attr, entry.attr_valid > 0);
  if (may_keep) names_[key] = entry.nodeid;
  return {.value = entry.nodeid};
}

Answer<Node> Kernel::walk(Program& program, std::string_view path) {
  Answer<Node> at{.value = FUSE_ROOT_ID};
  while (!path.empty() && at.error == 0) {
    const std::size_t slash = path.find('/');
    at = look_up(program, at.value, path.substr(0, slash));
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  }
  return at;
}

Answer<std::pair<Node, std::string>> Kernel::walk_to_parent(Program& program, std::string_view path) {
  const std::size_t slash = path.rfind('/');
  const auto parent =
      walk(program, slash == std::string_view::npos ? std::string_view() : path.substr(0, slash));
  if (parent.error != 0) return {.error = parent.error};
  return {.value = {parent.value, std::string(path.substr(slash + 1))}};
}

Program Kernel::start(pid_t id, std::uint32_t uid) {
  Program program;
  program.id = id;
  program.uid = uid;
  program.owner = ++owners_;
  return program;
}

Program Kernel::fork(const Program& parent, pid_t id) {
  Program child = start(id, parent.uid);
  child.descriptors = parent.descriptors;
  child.mappings = parent.mappings;
  return child;
}

void Kernel::end(Program& program) {
  // Memory goes first, then the descriptors.
  while (!program.mappings.empty()) unmap(program, program.mappings.size() - 1);
  for (std::size_t at = 0; at < program.descriptors.size(); ++at) {
    if (program.descriptors[at]) close(program, at);
  }
}

Answer<std::size_t> Kernel::open(Program& program, std::string_view path, int flags) {
  const auto node = walk(program, path);
  if (node.error != 0) return {.error = node.error};
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
  // A short one is the end of the file.
  auto& known = inodes_[file.node].attributes.size;
  if (reply.body.size() < kPageBytes) known = std::min<std::uint64_t>(known, body.offset + reply.body.size());
  reply.body.resize(kPageBytes);
  return {.value = std::move(reply.body)};
}

Answer<Buffer> Kernel::read(Program& program, const DescriptionPointer& file, std::uint64_t offset,
                            std::uint64_t size) {
  if ((file->flags & O_ACCMODE) == O_WRONLY) return {.error = EBADF};
  // Where more is asked for than there seems to be, the size is looked at.
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

int Kernel::write(Program& program, const DescriptionPointer& file, std::uint64_t offset,
                  std::span<const std::byte> bytes) {
  if (!may_write(file->flags)) return EBADF;
  if ((file->flags & O_APPEND) != 0) offset = size_bytes(file->node);
  Inode& inode = inodes_[file->node];
  // Cached writes go to the page first.
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
    if (file->is_direct) {  // only then is the owner told
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
  return node.error != 0 ? node.error : set_size(program, node.value, nullptr, size);
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

Answer<fuse_attr> Kernel::stat(Program& program, std::string_view path) {
  const auto node = walk(program, path);
  if (node.error != 0) return {.error = node.error};
  if (!inodes_[node.value].knows_attributes) {
    if (const int error = get_attributes(program, node.value); error != 0) return {.error = error};
  }
  return {.value = inodes_[node.value].attributes};
}

int Kernel::get_attributes(Program& program, Node node) {
  Buffer body;
  append_to(body, fuse_getattr_in{});
  const Reply reply = call(FUSE_GETATTR, node, asker(program), body);
  if (reply.error != 0) return reply.error;
  const auto out = taken_from<fuse_attr_out>(reply.body);
  learn(node, out.attr, out.attr_valid > 0);
  return 0;
}

Answer<std::string> Kernel::attribute(Program& program, std::string_view path, std::string_view name) {
  const auto node = walk(program, path);
  if (node.error != 0) return {.error = node.error};
  fuse_getxattr_in wanted{};
  wanted.size = kPageBytes;
  Buffer body;
  append_to(body, wanted);
  append_name(body, name);
  const Reply reply = call(FUSE_GETXATTR, node.value, asker(program), body);
  if (reply.error != 0) return {.error = reply.error};
  return {.value =
              std::string(reinterpret_cast<const char*>(reply.body.data()), reply.body.size())};  // NOLINT
}

Answer<std::vector<std::string>> Kernel::list(Program& program, std::string_view path) {
  const auto node = walk(program, path);
  if (node.error != 0) return {.error = node.error};
  Buffer body;
  append_to(body, fuse_open_in{.flags = O_RDONLY | O_DIRECTORY, .open_flags = 0});
  const Reply opened = call(FUSE_OPENDIR, node.value, asker(program), body);
  if (opened.error != 0) return {.error = opened.error};
  Answer<std::vector<std::string>> answer;
  fuse_read_in wanted{};
  wanted.fh = taken_from<fuse_open_out>(opened.body).fh;
  wanted.size = kPageBytes;
  for (;;) {
    body.clear();
    append_to(body, wanted);
    const Reply reply = call(FUSE_READDIRPLUS, node.value, asker(program), body);
    answer.error = reply.error;
    if (reply.error != 0 || reply.body.empty()) break;
    for (std::size_t at = 0; at + FUSE_NAME_OFFSET_DIRENTPLUS < reply.body.size();) {
      const auto entry = taken_from<fuse_direntplus>(reply.body, at);
      const auto* start =
          reinterpret_cast<const char*>(reply.body.data()) + at + FUSE_NAME_OFFSET_DIRENTPLUS;  // NOLINT
      const std::string name(start, entry.dirent.namelen);
      answer.value.push_back(name);
      wanted.offset = entry.dirent.off;
      at += FUSE_DIRENTPLUS_SIZE(&entry);
      const fuse_entry_out& known = entry.entry_out;
      if (known.nodeid == 0 || name == "." || name == "..") continue;
      ++inodes_[known.nodeid].lookups;
      // A name that is known already stays what it is.
      const auto [at_name, is_new] = names_.emplace(Name(node.value, name), known.nodeid);
      if (is_new && known.entry_valid == 0) names_.erase(at_name);
      learn(known.nodeid, known.attr, known.attr_valid > 0);
    }
  }
  body.clear();
  append_to(body, fuse_release_in{.fh = wanted.fh, .flags = 0, .release_flags = 0, .lock_owner = 0});
  call(FUSE_RELEASEDIR, node.value, {}, body);
  return answer;
}

int Kernel::change_name(Program& program, std::uint32_t opcode, std::string_view path) {
  const auto place = walk_to_parent(program, path);
  if (place.error != 0) return place.error;
  Buffer body;
  if (opcode == FUSE_MKDIR) append_to(body, fuse_mkdir_in{.mode = 0755, .umask = 022});
  append_name(body, place.value.second);
  const Reply reply = call(opcode, place.value.first, asker(program), body);
  if (reply.error != 0) return reply.error;
  names_.erase(place.value);
  if (opcode != FUSE_MKDIR) return 0;
  const auto entry = taken_from<fuse_entry_out>(reply.body);
  ++inodes_[entry.nodeid].lookups;
  learn(entry.nodeid, entry.attr, entry.attr_valid > 0);
  if (entry.entry_valid > 0) names_[place.value] = entry.nodeid;
  return 0;
}

int Kernel::make_directory(Program& program, std::string_view path) {
  return change_name(program, FUSE_MKDIR, path);
}

int Kernel::remove_directory(Program& program, std::string_view path) {
  return change_name(program, FUSE_RMDIR, path);
}

int Kernel::unlink(Program& program, std::string_view path) {
  return change_name(program, FUSE_UNLINK, path);
}

int Kernel::rename(Program& program, std::string_view from, std::string_view to) {
  const auto old_place = walk_to_parent(program, from);
  if (old_place.error != 0) return old_place.error;
  const auto new_place = walk_to_parent(program, to);
  if (new_place.error != 0) return new_place.error;
  Buffer body;
  append_to(body, fuse_rename2_in{.newdir = new_place.value.first, .flags = 0, .padding = 0});
  append_name(body, old_place.value.second);
  append_name(body, new_place.value.second);
  const int error = call(FUSE_RENAME2, old_place.value.first, asker(program), body).error;
  if (error != 0) return error;
  names_.erase(old_place.value);
  names_.erase(new_place.value);
  return 0;
}

void Kernel::reclaim(std::size_t which) {
  if (which % 2 == 0) {
    for (auto& [node, inode] : inodes_)
      std::erase_if(inode.pages, [](const auto& page) { return !page.second.is_dirty; });
    return;
  }
  names_.clear();
  std::vector<Node> unused;
  for (const auto& [node, inode] : inodes_) {
    const bool is_dirty =
        std::ranges::any_of(inode.pages, [](const auto& page) { return page.second.is_dirty; });
    if (node != FUSE_ROOT_ID && inode.users == 0 && !is_dirty) unused.push_back(node);
  }
  for (const Node node : unused) forget(node);
}

void Kernel::forget(Node node) {
  Buffer body;
  append_to(body, fuse_forget_in{.nlookup = inodes_[node].lookups});
  inodes_.erase(node);
  if (!is_aborted()) wire_->send(FUSE_FORGET, node, {}, body);
}

void Kernel::notified(int code, std::span<const std::byte> body) {
  if (code == FUSE_NOTIFY_INVAL_INODE) {
    const auto out = taken_from<fuse_notify_inval_inode_out>(body);
    const auto found = inodes_.find(out.ino);
    if (found == inodes_.end()) return;
    found->second.knows_attributes = false;
    if (out.off < 0) return;
    const auto from = static_cast<std::uint64_t>(out.off);
    invalidate_pages(out.ino, from, out.len <= 0 ? ~0ULL : from + static_cast<std::uint64_t>(out.len));
  } else if (code == FUSE_NOTIFY_INVAL_ENTRY) {
    const auto out = taken_from<fuse_notify_inval_entry_out>(body);
    const auto* start =
        reinterpret_cast<const char*>(body.data()) + sizeof out;  // NOLINT: bytes as characters
    names_.erase(Name(out.parent, std::string(start, out.namelen)));
    if (const auto parent = inodes_.find(out.parent); parent != inodes_.end())
      parent->second.knows_attributes = false;
  }
}

void Kernel::invalidate_pages(Node node, std::uint64_t from, std::uint64_t end) {
  const auto in_range = [&](std::uint64_t page) {
    return (page + 1) * kPageBytes > from && page * kPageBytes < end;
  };
  // Dirty pages are written back before they go.
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
