// Implements the handlers. Each handler unpacks the request, calls the model, and replies. MountedModel has
// the semantics; MountRoot finds the model.
//
// If a handler makes a kernel cache stale, the invalidator's thread sends the reply after the cache has
// forgotten. A WRITE through the page cache is the exception: the kernel holds the pages' locks until the
// reply, and forgetting waits for these locks.
#include "fs/kernel/fuse_ops.h"

#include <fcntl.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/kernel/fuse_handlers.h"
#include "fs/kernel/kernel_reply.h"

namespace stfs {
namespace {

constexpr unsigned kMaxBackgroundRequests = 64;  // fs/KERNEL.md: the default of 12 is too few
constexpr unsigned kCongestedRequests = 48;

tl::unexpected<Error> is_a_directory() {
  return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
}

/// Replies to a close or a sync of a descriptor. If the commit of a content in the page cache is refused, the
/// page cache drops the bytes before the reply, so that no reader takes them for the tensor afterwards.
void reply_done(fuse_req_t req, Ino ino, const OpenFile& file, const Result<Stale>& result) {
  if (!result) {
    const MountRoot& mount_root = mount_root_of(req);
    mount_root.activity(mount_root.model_of(ino)).note_refused_commit();
    if (!is_in_page_cache(file)) return reply_error(req, ino, result.error());
    note_refusal(req, ino, result.error());
    const Stale stale = Stale::one(ino, Stale::What::Content);
    mount_of(req).invalidator->forget(
        stale, [req, errno_value = result.error().errno_value] { fuse_reply_err(req, errno_value); });
    return;
  }
  if (result->what == Stale::What::Nothing) {
    fuse_reply_err(req, 0);
    return;
  }
  forget_stale(mount_of(req), *result, [req] { fuse_reply_err(req, 0); });
}

/// Drops the bytes of a refused write from the page cache, which all descriptors of the tensor share. Does
/// not wait for that, because the kernel holds the pages until the reply.
/// @param file  null if the write came from a mapping.
void forget_refused(fuse_req_t req, Ino ino, const OpenFile* file) {
  if (file != nullptr && !is_in_page_cache(*file)) return;
  mount_of(req).invalidator->forget(Stale::one(ino, Stale::What::Content));
}

void on_init(void* userdata, fuse_conn_info* conn) {
  auto& mount = *static_cast<Mount*>(userdata);
  const auto want = [conn](unsigned capability, bool wanted) {
    if (wanted) {
      conn->want |= conn->capable & capability;
    } else {
      conn->want &= ~capability;
    }
  };
  // The kernel would keep few readaheads on their way for all users, and they go on when their readers end: a
  // slow server would stop the reads of others. The mount reads ahead from the server by itself.
  want(FUSE_CAP_ASYNC_READ, !mount.reads_may_wait);
  want(FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
           FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_EXPORT_SUPPORT,
       true);
  // Splicing is slower than one copy out of the map. AUTO_INVAL_DATA would drop a file's whole cache for a
  // changed mtime.
  want(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_AUTO_INVAL_DATA |
           FUSE_CAP_WRITEBACK_CACHE,
       false);
  // With O_TRUNC in OPEN the kernel would show all processes an empty tensor until the commit. Without it the
  // kernel sends a SETATTR, whose reply has the size to show.
  want(FUSE_CAP_ATOMIC_O_TRUNC, false);
  conn->max_background = kMaxBackgroundRequests;
  conn->congestion_threshold = kCongestedRequests;
  // Passthrough needs a reply to each open, so the kernel must keep sending OPEN.
  const bool passes_through = mount.wants_passthrough && mount.passthrough.ask_for(conn);
  mount.kernel_keeps_open =
      mount.mount_root.is_read_only() && !passes_through && (conn->capable & FUSE_CAP_NO_OPEN_SUPPORT) != 0;
}

void on_getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info*) {
  if (is_served(ino)) return get_attributes_of_source(req, ino);
  guarded(req, ino, Request::Getattr, [&](const MountRoot::Pin& model) {
    auto st = mount_root_of(req).attributes(ino);
    if (!st) return reply_error(req, ino, st.error());
    st->st_ino = shown_ino(ino);
    const bool is_draft = model && model->is_draft(ino);
    fuse_reply_attr(req, &*st, is_draft ? 0 : timeout_of(mount_root_of(req), ino));
  });
}

void on_setattr(fuse_req_t req, fuse_ino_t ino, struct stat* attr, int to_set, fuse_file_info* fi) {
  if (is_served(ino)) return set_attributes_of_source(req, ino, *attr, to_set);
  // Only a change of the size may have to wait for a commit of the same tensor.
  const auto run = [&](const auto& handler) {
    if ((to_set & FUSE_SET_ATTR_SIZE) != 0) return guarded_slowly(req, ino, Request::Setattr, handler);
    guarded(req, ino, Request::Setattr, handler);
  };
  run([=, wanted = *attr, file = open_file(fi),
       owner = fi == nullptr ? Owner{0} : fi->lock_owner](const MountRoot::Pin& model) {
    if (!model) return refuse_beside_models(req, ino);
    const auto now = mount_root_of(req).attributes(ino);
    if (!now) return reply_error(req, ino, now.error());
    if (model->is_read_only())
      return reply_error(req, ino, {ErrorCode::ReadOnly, EROFS, "mounted read-only"});
    if (const auto settable = model->check_settable(ino); !settable)
      return reply_error(req, ino, settable.error());
    // A tensor has the mode and the owner of its archive. Programs that copy files set both after they have
    // written the bytes, and report a failed copy if this fails.
    if (mount_of(req).refuses_modes && changes_access(*now, wanted, to_set)) {
      return refuse(req, ino,
                    "a tensor has the mode and the owner of its archive: without -o strict_modes chmod and "
                    "chown are ignored");
    }
    if ((to_set & FUSE_SET_ATTR_SIZE) != 0) {
      const auto size_bytes = static_cast<std::uint64_t>(wanted.st_size);
      const Caller caller(owner, fuse_req_ctx(req)->pid);
      const auto resized = file != nullptr ? model->resize(*file, size_bytes, caller)
                                           : model->resize_by_name(ino, size_bytes, caller.thread);
      if (!resized) {
        if (file != nullptr) forget_refused(req, ino, file);
        return reply_error(req, ino, resized.error());
      }
    }
    if (const auto mtime = mtime_of(wanted, to_set); mtime) model->set_mtime(ino, *mtime);
    on_getattr(req, ino, nullptr);
  });
}

void on_access(fuse_req_t req, fuse_ino_t ino, int mask) {
  guarded(req, ino, Request::Access, [&](const MountRoot::Pin& model) {
    const auto st = mount_root_of(req).attributes(ino);
    if (!st) return reply_error(req, ino, st.error());
    constexpr mode_t kExecute = 0111;
    constexpr mode_t kWrite = 0222;
    if ((mask & W_OK) != 0 && mount_root_of(req).is_read_only(model)) {
      fuse_reply_err(req, EROFS);
    } else if (((mask & W_OK) != 0 && (st->st_mode & kWrite) == 0) ||
               ((mask & X_OK) != 0 && (st->st_mode & kExecute) == 0)) {
      fuse_reply_err(req, EACCES);
    } else {
      fuse_reply_err(req, 0);
    }
  });
}

/// Opens the log in the root of a directory of models.
Result<OpenFile*> open_log(int flags) {
  if ((flags & O_ACCMODE) == O_RDONLY) return nullptr;
  return fail(ErrorCode::ReadOnly, EROFS, "the log can't be written to");
}

/// Replies to an open of a file that the kernel can read by passthrough. @return false if it cannot; then
/// there was no reply.
bool pass_through([[maybe_unused]] fuse_req_t req, [[maybe_unused]] const MountRoot::Pin& model,
                  [[maybe_unused]] fuse_ino_t ino, [[maybe_unused]] fuse_file_info* fi) {
#ifdef STFS_HAVE_FUSE_PASSTHROUGH
  Mount& mount = mount_of(req);
  const auto descriptor = model->same_file(ino);
  const int backing = descriptor ? mount.passthrough.open(req, ino, *descriptor) : 0;
  if (backing == 0) return false;
  fi->backing_id = backing;
  fi->keep_cache = 0;  // passthrough has no cache of this inode
  if (fuse_reply_open(req, fi) != 0) mount.passthrough.release(req, ino);
  return true;
#else
  return false;
#endif
}

/// Ends a request for a checksum whose program was killed, if the request is still in the queue. A running
/// computation notices the kill itself.
void end_waiting_checksum(fuse_req_t req, void* data) {
  const Mount& mount = *static_cast<Mount*>(data);
  const uid_t user = fuse_req_ctx(req)->uid;
  if (auto work = mount.checksums->take_back(user, req))
    mount.slow->run_elsewhere({.user = user, .work = std::move(work)});
}

/// Acts as guarded(), for requests that may compute a checksum. A checksum needs all bytes of a tensor, so it
/// uses the disk, the page cache and a core. Therefore only a few threads compute checksums.
template <class Handler>
void compute_checksum(fuse_req_t req, Ino ino, Request kind, const Handler& handler) {
  Mount& mount = mount_of(req);
  const auto work = [=] { guarded(req, ino, kind, handler); };
  SlowRequests::Request request{.user = fuse_req_ctx(req)->uid};
  try {
    request.work = work;
    request.id = req;
    request.is_given_up = [req] { return fuse_req_interrupted(req) != 0; };
  } catch (const std::bad_alloc&) {
    return work();
  }
  fuse_req_interrupt_func(req, end_waiting_checksum, &mount);
  // Another thread may reply from now on, and then the libfuse frees `req`.
  mount.checksums->run_elsewhere(std::move(request));
}

void on_open(fuse_req_t req, fuse_ino_t ino, fuse_file_info* fi) {
  if (is_served(ino) && !mount_of(req).kernel_keeps_open) return open_source(req, ino, *fi);
  const auto open = [req, ino, asked = *fi](const MountRoot::Pin& model) {
    fuse_file_info opened = asked;
    Mount& mount = mount_of(req);
    std::call_once(mount.has_opened, mount.on_first_open);
    if (mount.kernel_keeps_open && (opened.flags & O_ACCMODE) == O_RDONLY) {
      // After ENOSYS the kernel sends no OPEN any more. Descriptors of a read-only mount have no state.
      fuse_reply_err(req, ENOSYS);
      return;
    }
    const auto file = model ? model->open(ino, opened.flags, fuse_req_ctx(req)->pid)
                      : mount_root_of(req).is_log_of_root(ino) ? open_log(opened.flags)
                                                               : is_a_directory();
    if (!file) return reply_error(req, ino, file.error());
    set_open_flags(ino, *file, opened);
    if (model && model->is_draft(ino)) opened.keep_cache = 0;
    if (mount.wants_passthrough && pass_through(req, model, ino, &opened)) return;
    // If the reply fails, the opener and its descriptor do not exist any more, and the kernel sends no
    // RELEASE.
    if (fuse_reply_open(req, &opened) != 0 && *file != nullptr) model->release(*file);
  };
  // A file of a transaction notes the checksum of its tensor before it is written.
  if (TransactionDirectory::owns(InodeSpace::local(ino)) && (fi->flags & O_ACCMODE) != O_RDONLY)
    return compute_checksum(req, ino, Request::Open, open);
  guarded(req, ino, Request::Open, open);
}

void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info*) {
  const auto read = [=](const MountRoot::Pin& model) {
    MountRoot& mount_root = mount_root_of(req);
    const auto bytes = mount_root.read(ino, static_cast<std::uint64_t>(offset), size);
    if (!bytes) return reply_error(req, ino, bytes.error());
    mount_root.activity(model).note_read(bytes->size_bytes());
    KernelReply::send(req, *bytes);
  };
  // A slice takes its elements from many places: a megabyte of them can take seconds.
  if (is_served(ino) || Views::is_counted(InodeSpace::local(ino)) || mount_of(req).reads_may_wait)
    return guarded_slowly(req, ino, Request::Read, read);
  guarded(req, ino, Request::Read, read);
}

// Each request on a descriptor has a model, and so has each page that is written back, because the kernel's
// look-up holds the model.

/// @param file  null for a write from a mapping. The kernel picks any writable descriptor for such a write,
///              so only the inode is known.
void write(fuse_req_t req, fuse_ino_t ino, std::span<const std::byte> bytes, std::uint64_t at, OpenFile* file,
           Caller caller, std::optional<uid_t> opener) {
  const auto write = [&](const MountRoot::Pin& model) {
    model->activity()->note_written(bytes.size());
    if (file == nullptr) {
      if (auto written = model->write_back(ino, bytes, at); !written) {
        forget_refused(req, ino, nullptr);
        return reply_error(req, ino, written.error());
      }
      fuse_reply_write(req, bytes.size());
      return;
    }
    bool is_answered = false;
    const auto accept = [&] {
      is_answered = true;
      fuse_reply_write(req, bytes.size());
    };
    const auto written = guard_memory([&] { return model->write(*file, bytes, at, caller, accept); });
    if (is_answered) return;
    if (!written) {
      forget_refused(req, ino, file);
      return reply_error(req, ino, written.error());
    }
    if (written->what == Stale::What::Nothing) {
      fuse_reply_write(req, bytes.size());
    } else {
      // A synchronous write of an isolated descriptor bypasses the page cache, so no page is locked.
      forget_stale(mount_of(req), *written, [req, size = bytes.size()] { fuse_reply_write(req, size); });
    }
  };
  guarded(req, ino, Request::Write, write, opener);
}

void on_write(fuse_req_t req, fuse_ino_t ino, const char* data, size_t size, off_t offset,
              fuse_file_info* fi) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto at = static_cast<std::uint64_t>(offset);
  if (is_served(ino)) return write_source(req, ino, bytes, at, *fi);
  const auto opener = opener_of(ino, fi);
  OpenFile* const file = fi->writepage != 0 ? nullptr : open_file(fi);
  const Caller caller(fi->lock_owner, fuse_req_ctx(req)->pid);
  // The request owns the bytes, so another thread gets a copy.
  mount_of(req).slow->run(
      user_of(req, opener).value_or(0), [&] { write(req, ino, bytes, at, file, caller, opener); },
      [&]() -> std::function<void()> {
        return [=, kept = std::vector<std::byte>(bytes.begin(), bytes.end())] {
          write(req, ino, kept, at, file, caller, opener);
        };
      });
}

void on_flush(fuse_req_t req, fuse_ino_t ino, fuse_file_info* fi) {
  OpenFile* file = open_file(fi);
  if (is_served(ino) && fi->fh != 0) return flush_source(req, ino);
  if (file == nullptr) {
    guarded(req, ino, Request::Flush,
            [&](const MountRoot::Pin&) { fuse_reply_err(req, mount_root_of(req).errno_of_readers_flush()); });
    return;
  }
  guarded_slowly(req, ino, Request::Flush, [=, owner = fi->lock_owner](const MountRoot::Pin& model) {
    reply_done(req, ino, *file, model->flush(*file, owner, fuse_req_ctx(req)->pid));
  });
}

void on_fsync(fuse_req_t req, fuse_ino_t ino, int, fuse_file_info* fi) {
  if (is_served(ino)) return sync_source(req, ino);
  guarded_slowly(req, ino, Request::Fsync, [=, file = open_file(fi)](const MountRoot::Pin& model) {
    if (file == nullptr) {
      fuse_reply_err(req, 0);  // a reader has no pending bytes
      return;
    }
    reply_done(req, ino, *file, model->sync(*file));
  });
}

void on_release(fuse_req_t req, fuse_ino_t ino, fuse_file_info* fi) {
  if (is_served(ino)) return release_source(req, ino, *fi);
  const auto release = [=, file = open_file(fi)](const MountRoot::Pin& model) {
    if (file == nullptr) {
      if (mount_of(req).wants_passthrough) mount_of(req).passthrough.release(req, ino);
      fuse_reply_err(req, 0);
      return;
    }
    Mount& mount = mount_of(req);
    const Stale stale = model->release(file);
    if (stale.what != Stale::What::Nothing) forget_stale(mount, stale, [] {});
    // The reply must not wait for the notification. The kernel counts a RELEASE among its background requests
    // until the reply, and sends no readahead while there are kMaxBackgroundRequests of them. The
    // notification may wait for a page of such a readahead.
    fuse_reply_err(req, 0);
  };
  guarded_slowly(req, ino, Request::Release, release, opener_of(ino, fi));
}

/// Replies with the text of attributes, or with its size to a caller that has no room yet.
void reply_attributes(fuse_req_t req, std::string_view text, size_t room) {
  if (room == 0) {
    fuse_reply_xattr(req, text.size());
  } else if (text.size() > room) {
    fuse_reply_err(req, ERANGE);
  } else {
    fuse_reply_buf(req, text.data(), text.size());
  }
}

constexpr std::string_view kChecksumAttribute = "user.safetensors.checksum";

void on_getxattr(fuse_req_t req, fuse_ino_t ino, const char* name, size_t size) {
  const auto handler = [req, ino, size](const MountRoot::Pin& model, const char* wanted) {
    const auto value = model ? model->extended_attribute(ino, wanted)
                             : fail(ErrorCode::NotFound, ENODATA, "no such attribute");
    if (!value) return reply_error(req, ino, value.error());
    reply_attributes(req, *value, size);
  };
  if (name == kChecksumAttribute) {
    compute_checksum(req, ino, Request::Xattr,
                     [handler](const MountRoot::Pin& model) { handler(model, kChecksumAttribute.data()); });
  } else {
    guarded(req, ino, Request::Xattr, [&](const MountRoot::Pin& model) { handler(model, name); });
  }
}

void on_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size) {
  guarded(req, ino, Request::Xattr, [&](const MountRoot::Pin& model) {
    const auto names =
        model ? model->list_extended_attributes(ino, caller_of(req)) : std::vector<std::string>{};
    if (!names) return reply_error(req, ino, names.error());
    std::string list;
    for (const std::string& name : *names) list.append(name.c_str(), name.size() + 1);
    reply_attributes(req, list, size);
  });
}

void on_statfs(fuse_req_t req, fuse_ino_t) {
  guarded_slowly(req, kRootIno, Request::Statfs, [=](const MountRoot::Pin&) {
    const struct statvfs st = mount_root_of(req).statistics();
    fuse_reply_statfs(req, &st);
  });
}

void set_attribute(fuse_req_t req, fuse_ino_t ino, const std::string& name,
                   const std::optional<std::string>& value, int flags) {
  if (name.starts_with("system.")) {
    // `cp -p` copies access control lists. It accepts only EOPNOTSUPP as "this file system has none".
    fuse_reply_err(req, EOPNOTSUPP);
    return;
  }
  change_slowly(req, ino, Request::Xattr, name, [=](const MountRoot::Pin& model) {
    const auto set = model->set_extended_attribute(ino, name, value, flags);
    if (!set) return reply_error(req, ino, set.error(), name);
    Mount& mount = mount_of(req);
    forget_outdated(mount, *set);
    // The kernel holds the lock of the inode. For a directory, forget_outdated() says why nothing waits.
    if (model->file_type(ino) == S_IFDIR) {
      fuse_reply_err(req, 0);
    } else {
      if (!set->entries.empty()) mount.invalidator->wait_for_names();
      mount.invalidator->run([req] { fuse_reply_err(req, 0); });
    }
  });
}

}  // namespace

Maker caller_of(fuse_req_t req) {
  constexpr int kMostGroups = 1 << 16;  // NGROUPS_MAX
  std::vector<gid_t> groups(16);
  int count = fuse_req_getgroups(req, static_cast<int>(groups.size()), groups.data());
  if (count > static_cast<int>(groups.size())) {
    groups.resize(static_cast<std::size_t>(std::min(count, kMostGroups)));
    count = fuse_req_getgroups(req, static_cast<int>(groups.size()), groups.data());
  }
  groups.resize(static_cast<std::size_t>(std::clamp(count, 0, static_cast<int>(groups.size()))));
  const fuse_ctx& caller = *fuse_req_ctx(req);
  return {.uid = caller.uid, .gid = caller.gid, .other_groups = std::move(groups)};
}

void set_open_flags(Ino ino, OpenFile* file, fuse_file_info& fi) {
  fi.fh = reinterpret_cast<std::uint64_t>(file);
  const bool is_new = file != nullptr && file->kind == FileKind::New;
  const bool is_isolated = file != nullptr && file->kind == FileKind::Isolated;
  // The bytes of a checkpoint are written in order, and are not read back.
  const bool is_checkpoint = is_new && file->content && file->content->checkpoint() != nullptr;
  fi.direct_io = is_isolated || is_checkpoint || (is_new && (fi.flags & O_ACCMODE) == O_WRONLY) ? 1 : 0;
  const Ino local = InodeSpace::local(ino);
  const bool is_of_source = PretrainedDirectory::owns(local);
  fi.keep_cache = is_new || is_of_source || TransactionDirectory::owns(local) ? 0 : 1;
#ifdef STFS_HAVE_FUSE_NOFLUSH
  fi.noflush = file == nullptr && !is_of_source ? 1 : 0;
#endif
}

void forget_stale(Mount& mount, const Stale& stale, std::function<void()> then) {
  const MountRoot::Pin model = mount.mount_root.model_of(stale.first);
  const auto views = model ? model->stale_views(stale) : std::vector<Stale>{};
  if (views.empty()) {
    mount.invalidator->forget(stale, std::move(then));
    return;
  }
  for (const Stale& view : views) mount.invalidator->forget(view);
  // `then` must run after the views are forgotten, even if forget() handles a single inode's attributes at
  // once.
  mount.invalidator->forget(stale);
  if (then) mount.invalidator->run(std::move(then));
}

const fuse_lowlevel_ops& fuse_operations() {
  static const fuse_lowlevel_ops operations = [] {
    fuse_lowlevel_ops ops{};
    add_directory_operations(ops);
    ops.init = on_init;
    ops.getattr = on_getattr;
    ops.setattr = on_setattr;
    ops.access = on_access;
    ops.open = on_open;
    ops.read = on_read;
    ops.write = on_write;
    ops.flush = on_flush;
    ops.fsync = on_fsync;
    ops.release = on_release;
    ops.getxattr = on_getxattr;
    ops.listxattr = on_listxattr;
    ops.statfs = on_statfs;
    ops.symlink = [](fuse_req_t req, const char*, fuse_ino_t ino, const char* name) {
      refuse(req, ino, "there are no symbolic links among tensors: copy the file", name);
    };
    ops.link = [](fuse_req_t req, fuse_ino_t, fuse_ino_t ino, const char* name) {
      refuse(req, ino, "a tensor has one name, and no links: copy it", name);
    };
    ops.setxattr = [](fuse_req_t req, fuse_ino_t ino, const char* name, const char* value, size_t size,
                      int flags) { set_attribute(req, ino, name, std::string(value, size), flags); };
    ops.removexattr = [](fuse_req_t req, fuse_ino_t ino, const char* name) {
      set_attribute(req, ino, name, std::nullopt, 0);
    };
    return ops;
  }();
  return operations;
}

}  // namespace stfs
