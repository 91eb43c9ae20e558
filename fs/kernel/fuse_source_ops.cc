// Implements the requests on the files of the source directory, in `.safetensors/pretrained`. The semantics
// are in PretrainedFiles. Each request may wait for the disk of the source directory.
#include <string>
#include <utility>
#include <vector>

#include "fs/kernel/fuse_handlers.h"

namespace stfs {
namespace {

/// Replies with the attributes that a file has now.
void reply_attributes_of_source(fuse_req_t req, const Forest::Pin& model, fuse_ino_t ino) {
  const auto now = model->attributes(ino);
  if (!now) return reply_error(req, ino, now.error());
  forget_changed_source(mount_of(req), model, ino);
  fuse_reply_attr(req, &*now, 0);
}

void reply_to_source(fuse_req_t req, Ino ino, const Result<void>& done) {
  if (!done) return reply_error(req, ino, done.error());
  fuse_reply_err(req, 0);
}

}  // namespace

void forget_changed_source(Mount& mount, const Forest::Pin& model, Ino ino) {
  // No page is locked, and forgetting a page needs no directory's lock.
  if (is_in_pretrained(mount.forest, ino) && model && model->is_source_changed(ino))
    mount.invalidator->forget_here(Stale::one(ino, Stale::What::Content));
}

void get_attributes_of_source(fuse_req_t req, fuse_ino_t ino) {
  guarded_slowly(req, ino, Request::Getattr,
                 [=](const Forest::Pin& model) { reply_attributes_of_source(req, model, ino); });
}

void set_attributes_of_source(fuse_req_t req, fuse_ino_t ino, const struct stat& wanted, int to_set) {
  guarded_slowly(req, ino, Request::Setattr, [=](const Forest::Pin& model) {
    PretrainedFiles& files = model->pretrained_files();
    const Node node = model->node_of(ino);
    PretrainedFiles::Change change{.mtime = mtime_of(wanted, to_set)};
    if ((to_set & FUSE_SET_ATTR_MODE) != 0) change.permissions = wanted.st_mode;
    if ((to_set & FUSE_SET_ATTR_UID) != 0) change.uid = wanted.st_uid;
    if ((to_set & FUSE_SET_ATTR_GID) != 0) change.gid = wanted.st_gid;
    Result<void> done;
    if ((to_set & FUSE_SET_ATTR_SIZE) != 0)
      done = files.resize(node, static_cast<std::uint64_t>(wanted.st_size));
    const bool changes = change.permissions || change.uid || change.gid || change.mtime;
    if (done && changes) done = files.change(node, change);
    if (!done) return reply_error(req, ino, done.error());
    reply_attributes_of_source(req, model, ino);
  });
}

void open_source(fuse_req_t req, fuse_ino_t ino, const fuse_file_info& fi) {
  guarded_slowly(req, ino, Request::Open, [=](const Forest::Pin& model) {
    const auto opened = model->open(ino, fi.flags, fuse_req_ctx(req)->pid);
    if (!opened) return reply_error(req, ino, opened.error());
    fuse_file_info reply = fi;
    set_open_flags(ino, nullptr, reply);
    fuse_reply_open(req, &reply);
  });
}

void write_source(fuse_req_t req, fuse_ino_t ino, std::span<const std::byte> bytes, std::uint64_t at,
                  int flags) {
  // The request owns the bytes, so another thread gets a copy.
  guarded_slowly(req, ino, Request::Write,
                 [=, kept = std::vector<std::byte>(bytes.begin(), bytes.end())](const Forest::Pin& model) {
                   model->activity()->note_written(kept.size());
                   const auto written = model->pretrained_files().write(model->node_of(ino), kept, at, flags);
                   if (!written) {
                     mount_of(req).invalidator->forget(Stale::one(ino, Stale::What::Content));
                     return reply_error(req, ino, written.error());
                   }
                   fuse_reply_write(req, kept.size());
                 });
}

void flush_source(fuse_req_t req, fuse_ino_t ino) {
  guarded_slowly(req, ino, Request::Flush, [=](const Forest::Pin& model) {
    reply_to_source(req, ino, model->pretrained_files().close(model->node_of(ino)));
  });
}

void sync_source(fuse_req_t req, fuse_ino_t ino) {
  guarded_slowly(req, ino, Request::Fsync, [=](const Forest::Pin& model) {
    reply_to_source(req, ino, model->pretrained_files().sync(model->node_of(ino)));
  });
}

}  // namespace stfs
