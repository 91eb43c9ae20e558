// Implements the requests on the files of a source directory, in `.safetensors/pretrained` and beside the
// models of a directory. ServedFiles has the semantics. Each request may wait for the disk of the source
// directory.
#include <fcntl.h>

#include <string>
#include <utility>
#include <vector>

#include "fs/kernel/fuse_handlers.h"

namespace stfs {
namespace {

void reply_to_source(fuse_req_t req, Ino ino, const Result<void>& done) {
  if (!done) return reply_error(req, ino, done.error());
  fuse_reply_err(req, 0);
}

}  // namespace

void forget_changed_source(Mount& mount, const MountRoot::Pin& model, Ino ino) {
  // The notice waits for the pages that the kernel is writing, and needs no directory's lock.
  if (is_served(ino) && mount.mount_root.is_source_changed(model, ino))
    mount.invalidator->forget_here(Stale::one(ino, Stale::What::Content));
}

void get_attributes_of_source(fuse_req_t req, fuse_ino_t ino) {
  guarded_slowly(req, ino, Request::Getattr, [=](const MountRoot::Pin& model) {
    const auto now = mount_root_of(req).attributes(ino);
    if (!now) return reply_error(req, ino, now.error());
    forget_changed_source(mount_of(req), model, ino);
    fuse_reply_attr(req, &*now, 0);
  });
}

void set_attributes_of_source(fuse_req_t req, fuse_ino_t ino, const struct stat& wanted, int to_set) {
  guarded_slowly(req, ino, Request::Setattr, [=](const MountRoot::Pin& model) {
    if (!model) return refuse_beside_models(req, ino);
    const auto [files, node] = mount_root_of(req).served(model, ino);
    ServedFiles::Change change{.mtime = mtime_of(wanted, to_set)};
    if ((to_set & FUSE_SET_ATTR_MODE) != 0) change.permissions = wanted.st_mode;
    if ((to_set & FUSE_SET_ATTR_UID) != 0) change.uid = wanted.st_uid;
    if ((to_set & FUSE_SET_ATTR_GID) != 0) change.gid = wanted.st_gid;
    Result<void> done;
    if ((to_set & FUSE_SET_ATTR_SIZE) != 0)
      done = files.resize(node, static_cast<std::uint64_t>(wanted.st_size));
    const bool changes = change.permissions || change.uid || change.gid || change.mtime;
    if (done && changes) done = files.change(node, change);
    const auto now = done ? mount_root_of(req).attributes(ino) : pass_on(std::move(done));
    if (!now) return reply_error(req, ino, now.error());
    // Until the reply to a change of the size, the kernel sends no written page of the file. A notice before
    // the reply would wait for these pages, and they for the reply.
    Mount& mount = mount_of(req);
    fuse_reply_attr(req, &*now, 0);
    forget_changed_source(mount, model, ino);
  });
}

void open_source(fuse_req_t req, fuse_ino_t ino, const fuse_file_info& fi) {
  guarded_slowly(req, ino, Request::Open, [=](const MountRoot::Pin& model) {
    if (!model && (fi.flags & O_ACCMODE) != O_RDONLY) return refuse_beside_models(req, ino);
    const auto [files, node] = mount_root_of(req).served(model, ino);
    const auto opened = files.open(node, fi.flags);
    if (!opened) return reply_error(req, ino, opened.error());
    fuse_file_info reply = fi;
    set_open_flags(ino, nullptr, reply);
    const bool writes = (fi.flags & O_ACCMODE) != O_RDONLY;
    if (writes) reply.fh = source_handle(requesting_user());
    // If the reply fails, the opener does not exist any more, and the kernel sends no RELEASE.
    if (fuse_reply_open(req, &reply) != 0 && writes) files.release(node);
  });
}

void write_source(fuse_req_t req, fuse_ino_t ino, std::span<const std::byte> bytes, std::uint64_t at,
                  const fuse_file_info& fi) {
  const int flags = fi.writepage != 0 ? 0 : fi.flags;  // any descriptor's, for a page
  // The request owns the bytes, so another thread gets a copy.
  const auto write = [=, kept = std::vector<std::byte>(bytes.begin(), bytes.end())](const auto& model) {
    mount_root_of(req).activity(model).note_written(kept.size());
    const auto [files, node] = mount_root_of(req).served(model, ino);
    const auto written = files.write(node, kept, at, flags);
    if (!written) {
      mount_of(req).invalidator->forget(Stale::one(ino, Stale::What::Content));
      return reply_error(req, ino, written.error());
    }
    fuse_reply_write(req, kept.size());
  };
  guarded_slowly(req, ino, Request::Write, write, opener_of(ino, &fi));
}

void flush_source(fuse_req_t req, fuse_ino_t ino) {
  guarded_slowly(req, ino, Request::Flush, [=](const MountRoot::Pin& model) {
    const auto [files, node] = mount_root_of(req).served(model, ino);
    reply_to_source(req, ino, files.close(node));
  });
}

void release_source(fuse_req_t req, fuse_ino_t ino, const fuse_file_info& fi) {
  const auto opener = opener_of(ino, &fi);
  const auto release = [=](const MountRoot::Pin& model) {
    if (opener) {
      const auto [files, node] = mount_root_of(req).served(model, ino);
      files.release(node);
    }
    fuse_reply_err(req, 0);
  };
  guarded_slowly(req, ino, Request::Release, release, opener);
}

void sync_source(fuse_req_t req, fuse_ino_t ino) {
  guarded_slowly(req, ino, Request::Fsync, [=](const MountRoot::Pin& model) {
    const auto [files, node] = mount_root_of(req).served(model, ino);
    reply_to_source(req, ino, files.sync(node));
  });
}

}  // namespace stfs
