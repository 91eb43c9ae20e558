// Code that the files of handlers share. No other file includes it.
#pragma once

#include <fuse_lowlevel.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/cancellation.h"
#include "fs/base/log.h"
#include "fs/base/requester.h"
#include "fs/base/survive.h"
#include "fs/kernel/fuse_ops.h"

namespace stfs {

/// Adds the handlers that look up, list, make, move and remove.
void add_directory_operations(fuse_lowlevel_ops& ops);

/// Sets how the kernel uses the descriptor of a file. @param file  null for a reader.
void set_open_flags(Ino ino, OpenFile* file, fuse_file_info& fi);

// Requests on the files of a source directory, in `.safetensors/pretrained` and beside the models of a
// directory (fuse_source_ops.cc):
/// True for the number of `pretrained`, and of any file or directory of the source directory. Requests on
/// these wait for a disk.
inline bool is_served(Ino ino) {
  return PretrainedDirectory::owns(InodeSpace::local(ino));
}
void get_attributes_of_source(fuse_req_t req, fuse_ino_t ino);
void set_attributes_of_source(fuse_req_t req, fuse_ino_t ino, const struct stat& wanted, int to_set);
void open_source(fuse_req_t req, fuse_ino_t ino, const fuse_file_info& fi);
void write_source(fuse_req_t req, fuse_ino_t ino, std::span<const std::byte> bytes, std::uint64_t at,
                  const fuse_file_info& fi);
void flush_source(fuse_req_t req, fuse_ino_t ino);
void release_source(fuse_req_t req, fuse_ino_t ino, const fuse_file_info& fi);
void sync_source(fuse_req_t req, fuse_ino_t ino);
/// Makes the kernel forget the cached bytes of a file, if the file has changed since they were cached. Call
/// before a reply with the file's attributes.
void forget_changed_source(Mount& mount, const MountRoot::Pin& model, Ino ino);

/// Tells the kernel's caches what to forget. Views that show the stale tensors are forgotten first. Then
/// calls `then`, either at once or on the invalidator's thread.
void forget_stale(Mount& mount, const Stale& stale, std::function<void()> then);

// The kernel may cache entries and attributes without limit, because the mount tells the kernel when they
// change.
inline constexpr double kForeverSeconds = 1e9;

/// Makes the kernel forget what an edit has made stale, without waiting. A request for which the kernel holds
/// the lock of a directory never waits for the invalidator, because the invalidator may wait for the same
/// lock to forget an entry.
inline void forget_outdated(Mount& mount, const Outdated& outdated) {
  for (const Stale& stale : outdated.stale) forget_stale(mount, stale, {});
  if (!outdated.entries.empty()) mount.invalidator->forget_entries(outdated.entries);
}

using Stat = struct stat;  // `stat` alone is the function

inline Mount& mount_of(fuse_req_t req) {
  return *static_cast<Mount*>(fuse_req_userdata(req));
}
inline MountRoot& mount_root_of(fuse_req_t req) {
  return mount_of(req).mount_root;
}

/// The file that open has set, if the file shows tensors. Null for a reader, and if the request has no
/// descriptor.
inline OpenFile* open_file(const fuse_file_info* fi) {
  return fi == nullptr ? nullptr : reinterpret_cast<OpenFile*>(fi->fh);
}

/// The handle that open sets for a file of a source directory that is open for writing. The handle is never
/// 0.
inline std::uint64_t source_handle(uid_t opener) {
  return std::uint64_t{1} << 32U | opener;
}

/// The user who has opened the descriptor for writing; nothing for other descriptors.
inline std::optional<uid_t> opener_of(Ino ino, const fuse_file_info* fi) {
  if (fi == nullptr || fi->fh == 0) return std::nullopt;
  return is_served(ino) ? static_cast<uid_t>(fi->fh) : open_file(fi)->user;
}

/// True if a request would change the mode or the owner of a file.
inline bool changes_access(const Stat& now, const Stat& wanted, int to_set) {
  constexpr mode_t kPermissions = 07777;
  return ((to_set & FUSE_SET_ATTR_MODE) != 0 && ((wanted.st_mode ^ now.st_mode) & kPermissions) != 0) ||
         ((to_set & FUSE_SET_ATTR_UID) != 0 && wanted.st_uid != now.st_uid) ||
         ((to_set & FUSE_SET_ATTR_GID) != 0 && wanted.st_gid != now.st_gid);
}

/// The mtime that a request sets, if it sets one.
inline std::optional<struct timespec> mtime_of(const Stat& wanted, int to_set) {
  struct timespec mtime = wanted.st_mtim;
  if ((to_set & FUSE_SET_ATTR_MTIME_NOW) != 0) {
    clock_gettime(CLOCK_REALTIME, &mtime);
  } else if ((to_set & FUSE_SET_ATTR_MTIME) == 0) {
    return std::nullopt;
  }
  return mtime;
}

/// The user whom a request is charged to. A request that the kernel sends on its own (RELEASE, and pages that
/// are written back) is charged to the user who has opened the descriptor. Nothing if no user has.
inline std::optional<uid_t> user_of(fuse_req_t req, std::optional<uid_t> opener) {
  const fuse_ctx& caller = *fuse_req_ctx(req);
  const bool is_kernel = caller.pid == 0 && caller.uid == 0;
  return is_kernel ? opener : std::optional(caller.uid);
}

/// The user and the groups of the program that sent the request. Without the supplementary groups if /proc
/// does not show them.
Maker caller_of(fuse_req_t req);

/// Logs which request was refused and why. Logs nothing if the errno alone explains the refusal (ENOENT and
/// the like), or if the log already has the reason.
/// @param name  a name in the directory `ino`, if the request names one.
void note_refusal(fuse_req_t req, Ino ino, const Error& error, std::string_view name = {});

/// Replies to a request that is refused, and logs it (note_refusal()). Every reply with an error uses this
/// function, except an error that answers a question.
void reply_error(fuse_req_t req, Ino ino, const Error& error, std::string_view name = {});

/// Refuses a change that no model can serve: in the root of a directory of models, and beside the models.
void refuse_beside_models(fuse_req_t req, Ino ino, std::string_view name = {});

/// Refuses a change that this file system, or this directory, never allows. EPERM, or EROFS if it is
/// read-only. Can also be used as a whole handler. If no model has the inode, acts as refuse_beside_models().
void refuse(fuse_req_t req, Ino ino, std::string_view why, std::string_view name = {});

/// Runs a handler on the model of the inode, which is held during the call. The root of a directory of models
/// has no model. This is the boundary to C: no exception may pass it. The handler must not throw after its
/// reply, because the request does not exist any more.
/// @param opener  the user who has opened the request's descriptor.
template <class Handler>
void guarded(fuse_req_t req, Ino ino, Request kind, Handler&& handler,
             std::optional<uid_t> opener = std::nullopt) noexcept {
  const MountRoot& mount_root = mount_root_of(req);
  const MountRoot::Pin model = mount_root.model_of(ino);
  mount_root.activity(model).note_request(kind);
  const Requester requester(user_of(req, opener), fuse_req_ctx(req)->pid, [req] { return caller_of(req); });
  const Cancellation cancellation([req, session = mount_of(req).session] {
    return fuse_req_interrupted(req) != 0 || (session != nullptr && fuse_session_exited(session) != 0);
  });
  try {
    handler(model);
  } catch (const std::bad_alloc&) {
    reply_error(req, ino, {ErrorCode::OutOfMemory, ENOMEM, "out of memory"});
  } catch (const std::exception& exception) {
    survive("request", [&] { log::error("unexpected: {}", exception.what()); });
    fuse_reply_err(req, EIO);
  }
}

/// Acts as guarded(), for handlers that may wait for the disk or for other programs. The handler may be
/// copied to another thread, so it must hold its data by value.
template <class Handler>
void guarded_slowly(fuse_req_t req, Ino ino, Request kind, const Handler& handler,
                    std::optional<uid_t> opener = std::nullopt) {
  const auto work = [=] { guarded(req, ino, kind, handler, opener); };
  mount_of(req).slow->run(user_of(req, opener).value_or(0), work,
                          [&] { return std::function<void()>(work); });
}

/// Acts as guarded_slowly(), for look-ups and listings of a source directory. The kernel holds the
/// directory's lock during such a request, and other requests need this lock. Therefore these requests wait
/// only for the disk, and not in the queue of their user's slow requests.
template <class Handler>
void look_slowly(fuse_req_t req, Ino ino, Request kind, const Handler& handler) {
  const auto work = [=] { guarded(req, ino, kind, handler); };
  mount_of(req).names->run(fuse_req_ctx(req)->uid, work, [&] { return std::function<void()>(work); });
}

/// Acts as guarded_slowly(), for changes of a model. If no model has the inode, refuses at once: the kernel
/// may hold a directory's lock that other requests need, so the refusal must not wait for its user's turn.
/// @param name  a name in the directory `ino`, if the request names one.
template <class Handler>
void change_slowly(fuse_req_t req, Ino ino, Request kind, const std::string& name, const Handler& handler) {
  const auto change = [=](const MountRoot::Pin& model) {
    if (!model) return refuse_beside_models(req, ino, name);
    handler(model);
  };
  if (!mount_root_of(req).model_of(ino)) return guarded(req, ino, kind, change);
  guarded_slowly(req, ino, kind, change);
}

/// Call when the kernel has got a reply about an inode. If anything has changed since the reply was made, the
/// reply may have reached the kernel after the notification to forget it, so the kernel is notified again.
/// @param changes  MountedModel::changes(), before the reply was made.
inline void note_told(Mount& mount, Ino ino, std::uint64_t changes) noexcept {
  survive("reply", [&] {
    if (const MountRoot::Pin model = mount.mount_root.model_of(ino)) model->note_told(ino);
    if (MountedModel::changes() != changes)
      mount.invalidator->forget(Stale::one(ino, Stale::What::Attributes));
  });
}

/// The time for which the kernel may cache an inode's entry and attributes. The timeout is 0 for three kinds
/// of files. Entries of transactions are short-lived, and their sizes change with each write. Slices and
/// stats files exist only while they are in use. Files of a source directory may change without an event. A
/// name is cached no longer than its directory. Everything else stays cached until the mount notifies the
/// kernel.
inline double timeout_of(Ino ino) {
  const Ino local = InodeSpace::local(ino);
  const bool is_short_lived =
      TransactionDirectory::owns(local) || Views::is_counted(local) || PretrainedDirectory::owns(local);
  return is_short_lived ? 0 : kForeverSeconds;
}

/// Acts as timeout_of(ino). The root's attributes in a directory of models are not cached, because they
/// change with the source directory.
inline double timeout_of(const MountRoot& mount_root, Ino ino) {
  return ino == kRootIno && mount_root.has_changing_root() ? 0 : timeout_of(ino);
}

/// @param parent  the directory in which the name was found.
fuse_entry_param entry_of(const MountRoot& mount_root, const MountRoot::Pin& model, const struct stat& st,
                          Ino parent);

/// The inode number that stat(2) shows. stats.json and the log always show the same number, although each
/// look-up makes another file, because cp(1) refuses a file whose number changes between its stat and its
/// open.
inline Ino shown_ino(Ino ino) {
  const Ino local = InodeSpace::local(ino);
  const Ino entry = Views::remade_entry(local);
  return entry == 0 ? ino : ino - local + entry;
}

}  // namespace stfs
