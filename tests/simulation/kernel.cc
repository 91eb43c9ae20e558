// Mounts, sends requests, and starts and ends programs.
#include "tests/simulation/kernel.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <ostream>
#include <stdexcept>

namespace stfs::test {
namespace {

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

}  // namespace

void Kernel::mount(const fuse_lowlevel_ops& operations, void* userdata, bool checks_permissions) {
  checks_permissions_ = checks_permissions;
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
  // The mappings end first, then the file descriptors.
  while (!program.mappings.empty()) unmap(program, program.mappings.size() - 1);
  for (std::size_t at = 0; at < program.descriptors.size(); ++at) {
    if (program.descriptors[at]) close(program, at);
  }
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
    const auto* start = reinterpret_cast<const char*>(body.data()) + sizeof out;
    names_.erase(Name(out.parent, std::string(start, out.namelen)));
    if (const auto parent = inodes_.find(out.parent); parent != inodes_.end())
      parent->second.knows_attributes = false;
  }
}

}  // namespace stfs::test
