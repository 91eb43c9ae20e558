// Implements the requests on the names in a directory of models, and on the archives that programs make
// there. The semantics are in Forest. Each of them may wait for the disk of the source directory.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "fs/kernel/fuse_handlers.h"
#include "fs/kernel/kernel_reply.h"

namespace stfs {
namespace {

Maker maker_of(fuse_req_t req) {
  const fuse_ctx& caller = *fuse_req_ctx(req);
  return {.uid = caller.uid, .gid = caller.gid};
}

/// The bytes of a made file come as the program writes them, and no page keeps them.
void set_flags_of_made(fuse_file_info& fi, OpenFile* file) {
  fi.fh = reinterpret_cast<std::uint64_t>(file);
  fi.direct_io = 1;
}

}  // namespace

void create_in_source(fuse_req_t req, fuse_ino_t parent, std::string name, mode_t mode,
                      const fuse_file_info& fi) {
  guarded_slowly(req, parent, Request::Open, [=, name = std::move(name)](const Forest::Pin& model) {
    Forest& forest = forest_of(req);
    const auto made = forest.create(parent, name, fi.flags, mode, maker_of(req), fuse_req_ctx(req)->pid);
    if (!made) return reply_error(req, parent, made.error(), name);
    const fuse_entry_param entry = entry_of(forest, model, made->status, parent);
    fuse_file_info reply = fi;
    if (made->file != nullptr) {
      set_flags_of_made(reply, made->file);
    } else {
      set_open_flags(entry.ino, nullptr, reply);
    }
    forest.note_lookup(entry.ino);
    if (fuse_reply_create(req, &entry, &reply) == 0) return;
    if (made->file != nullptr) static_cast<void>(forest.release_made(made->file));
    if (made->file == nullptr) close_unused_source(forest, model, entry.ino);
    forest.forget(entry.ino, 1);
  });
}

void make_node_in_source(fuse_req_t req, fuse_ino_t parent, std::string name, mode_t mode) {
  guarded_slowly(req, parent, Request::Open, [=, name = std::move(name)](const Forest::Pin& model) {
    Forest& forest = forest_of(req);
    if (!S_ISREG(mode)) return refuse(req, parent, "devices, pipes and sockets can't be made here", name);
    if (parent == kRootIno && SourceDirectory::is_archive_name(name))
      return refuse(req, parent, "an archive is made by open(2): it has to be written", name);
    const auto made =
        forest.create(parent, name, O_WRONLY | O_EXCL, mode & ~S_IFMT, maker_of(req), fuse_req_ctx(req)->pid);
    if (!made) return reply_error(req, parent, made.error(), name);
    const auto [files, node] = forest.served(model, made->status.st_ino);
    if (auto closed = files.close(node); !closed) return reply_error(req, parent, closed.error(), name);
    const fuse_entry_param entry = entry_of(forest, model, made->status, parent);
    forest.note_lookup(entry.ino);
    if (fuse_reply_entry(req, &entry) != 0) forest.forget(entry.ino, 1);
  });
}

void make_directory_in_source(fuse_req_t req, fuse_ino_t parent, std::string name, mode_t mode) {
  guarded_slowly(req, parent, Request::Mkdir, [=, name = std::move(name)](const Forest::Pin& model) {
    Forest& forest = forest_of(req);
    const auto made = forest.make_directory(parent, name, mode, maker_of(req));
    if (!made) return reply_error(req, parent, made.error(), name);
    const fuse_entry_param entry = entry_of(forest, model, *made, parent);
    forest.note_lookup(entry.ino);
    if (fuse_reply_entry(req, &entry) != 0) forest.forget(entry.ino, 1);
  });
}

void remove_in_source(fuse_req_t req, fuse_ino_t parent, std::string name) {
  guarded_slowly(req, parent, Request::Unlink, [=, name = std::move(name)](const Forest::Pin&) {
    const auto removed = forest_of(req).remove(parent, name);
    if (!removed) return reply_error(req, parent, removed.error(), name);
    Mount& mount = mount_of(req);
    fuse_reply_err(req, 0);
    forget_outdated(mount, *removed);
  });
}

void remove_directory_in_source(fuse_req_t req, fuse_ino_t parent, std::string name) {
  guarded_slowly(req, parent, Request::Rmdir, [=, name = std::move(name)](const Forest::Pin&) {
    const auto removed = forest_of(req).remove_directory(parent, name);
    if (!removed) return reply_error(req, parent, removed.error(), name);
    fuse_reply_err(req, 0);
  });
}

void set_attributes_of_made(fuse_req_t req, fuse_ino_t ino, const struct stat& wanted, int to_set,
                            fuse_file_info* fi) {
  OpenFile* const file = open_file(fi);
  const Owner owner = fi == nullptr ? Owner{0} : fi->lock_owner;
  guarded_slowly(req, ino, Request::Setattr, [=](const Forest::Pin&) {
    Forest& forest = forest_of(req);
    const auto made = forest.made(ino);
    if (!made) return reply_error(req, ino, no_such_inode(ino).value());
    const auto now = forest.attributes(ino);
    if (!now) return reply_error(req, ino, now.error());
    Result<void> set;
    if (set && (to_set & FUSE_SET_ATTR_SIZE) != 0) {
      const Caller caller(owner, fuse_req_ctx(req)->pid);
      set = file != nullptr
                ? forest.resize_made(*file, static_cast<std::uint64_t>(wanted.st_size), caller)
                : Result<void>(fail(ErrorCode::InvalidArgument, EPERM, "open it to change its size"));
    }
    if (set && (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) != 0) {
      set = made->set_owner((to_set & FUSE_SET_ATTR_UID) != 0 ? wanted.st_uid : now->st_uid,
                            (to_set & FUSE_SET_ATTR_GID) != 0 ? wanted.st_gid : now->st_gid);
    }
    constexpr mode_t kPermissions = 0777;
    if (set && (to_set & FUSE_SET_ATTR_MODE) != 0) set = made->set_mode(wanted.st_mode & kPermissions);
    if (const auto mtime = mtime_of(wanted, to_set); set && mtime) set = made->set_mtime(*mtime);
    if (!set) return reply_error(req, ino, set.error());
    const auto changed = forest.attributes(ino);
    if (!changed) return reply_error(req, ino, changed.error());
    fuse_reply_attr(req, &*changed, timeout_of(ino));
  });
}

void set_attributes_of_archive(fuse_req_t req, fuse_ino_t ino, const struct stat& wanted, int to_set) {
  guarded_slowly(req, ino, Request::Setattr, [=](const Forest::Pin& model) {
    Forest& forest = forest_of(req);
    ServedFiles::Change change;
    if ((to_set & FUSE_SET_ATTR_MODE) != 0) change.permissions = wanted.st_mode;
    if ((to_set & FUSE_SET_ATTR_UID) != 0) change.uid = wanted.st_uid;
    if ((to_set & FUSE_SET_ATTR_GID) != 0) change.gid = wanted.st_gid;
    change.mtime = mtime_of(wanted, to_set);
    if (auto changed = forest.change_archive(model, change); !changed)
      return reply_error(req, ino, changed.error());
    const auto now = forest.attributes(ino);
    if (!now) return reply_error(req, ino, now.error());
    fuse_reply_attr(req, &*now, 0);
  });
}

void open_made(fuse_req_t req, fuse_ino_t ino, fuse_file_info& fi) {
  guarded(req, ino, Request::Open, [&](const Forest::Pin&) {
    const auto file = forest_of(req).open_made(ino, fi.flags);
    if (!file) return reply_error(req, ino, file.error());
    set_flags_of_made(fi, *file);
    fuse_reply_open(req, &fi);
  });
}

void read_made(fuse_req_t req, fuse_ino_t ino, std::size_t size_bytes, std::uint64_t offset) {
  guarded_slowly(req, ino, Request::Read, [=](const Forest::Pin&) {
    const auto made = forest_of(req).made(ino);
    if (!made) return reply_error(req, ino, no_such_inode(ino).value());
    auto bytes = made->read(offset, size_bytes);
    if (!bytes) return reply_error(req, ino, bytes.error());
    KernelReply::send(req, Bytes(std::move(*bytes)));
  });
}

void write_made(fuse_req_t req, fuse_ino_t ino, std::span<const std::byte> bytes, std::uint64_t at,
                OpenFile* file, Caller caller) {
  guarded(req, ino, Request::Write, [&](const Forest::Pin&) {
    if (file == nullptr)  // nobody maps it
      return reply_error(req, ino, {ErrorCode::InvalidArgument, EBADF, "written without a descriptor"});
    const auto written = guard_memory([&] { return forest_of(req).write_made(*file, bytes, at, caller); });
    if (!written) return reply_error(req, ino, written.error());
    fuse_reply_write(req, bytes.size());
  });
}

void flush_made(fuse_req_t req, fuse_ino_t ino, const fuse_file_info& fi) {
  guarded_slowly(req, ino, Request::Flush,
                 [=, file = open_file(&fi), owner = fi.lock_owner](const Forest::Pin&) {
                   const auto closed = forest_of(req).flush_made(*file, owner, fuse_req_ctx(req)->pid);
                   if (!closed) return reply_error(req, ino, closed.error());
                   if (closed->entries.empty()) return fuse_reply_err(req, 0), void();
                   // After its close a program finds the model, also in a listing.
                   Mount& mount = mount_of(req);
                   forget_outdated(mount, *closed);
                   mount.invalidator->wait_for_names();
                   mount.invalidator->run([req] { fuse_reply_err(req, 0); });
                 });
}

void sync_made(fuse_req_t req, fuse_ino_t ino) {
  guarded_slowly(req, ino, Request::Fsync, [=](const Forest::Pin&) {
    const auto made = forest_of(req).made(ino);
    const auto synced = made ? made->sync() : Result<void>();
    if (!synced) return reply_error(req, ino, synced.error());
    fuse_reply_err(req, 0);
  });
}

void release_made(fuse_req_t req, fuse_ino_t ino, const fuse_file_info& fi) {
  guarded_slowly(req, ino, Request::Release, [=, file = open_file(&fi)](const Forest::Pin&) {
    Mount& mount = mount_of(req);
    if (file != nullptr) forget_outdated(mount, forest_of(req).release_made(file));
    fuse_reply_err(req, 0);
  });
}

}  // namespace stfs
