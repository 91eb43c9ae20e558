// What the handlers of fuse_ops.cc and fuse_directory_ops.cc share. For those two alone.
#pragma once

#include <fuse_lowlevel.h>

#include <functional>
#include <new>

#include "fs/base/log.h"
#include "fs/kernel/fuse_ops.h"
#include "fs/read/cancellation.h"

namespace stfs {

/// Enters the handlers that look up, list, make, move and remove.
void add_directory_operations(fuse_lowlevel_ops& ops);

/// Tells the caches what to forget, the views of it first; then `then`, on the invalidator's thread or at
/// once.
void forget_stale(Mount& mount, const Stale& stale, std::function<void()> then);

// "For ever": the tree changes only by our own hand, and then the kernel is told.
inline constexpr double kForeverSeconds = 1e9;

using Stat = struct stat;  // `stat` alone is the function

inline Mount& mount_of(fuse_req_t req) {
  return *static_cast<Mount*>(fuse_req_userdata(req));
}
inline Forest& forest_of(fuse_req_t req) {
  return mount_of(req).forest;
}

inline void reply_error(fuse_req_t req, Ino ino, const Error& error) {
  // Failures of the store, not of the request, are for the log: nobody may miss them.
  if (error.errno_value == EIO) {
    log::error("{}", error.message);
    forest_of(req).activity(ino).note_error();
  }
  fuse_reply_err(req, error.errno_value);
}

/// The C boundary: no exception may pass it.
template <class Handler>
void guarded(fuse_req_t req, Ino ino, Request kind, Handler&& handler) noexcept {
  forest_of(req).activity(ino).note_request(kind);
  const Cancellation cancellation([req, session = mount_of(req).session] {
    return fuse_req_interrupted(req) != 0 || (session != nullptr && fuse_session_exited(session) != 0);
  });
  try {
    handler();
  } catch (const std::bad_alloc&) {
    fuse_reply_err(req, ENOMEM);
  } catch (const std::exception& exception) {
    log::error("unexpected: {}", exception.what());
    fuse_reply_err(req, EIO);
  }
}

/// guarded(), for what may wait for the disk or for others. The handler is copied where another thread runs
/// it: it holds what it needs by value.
template <class Handler>
void guarded_slowly(fuse_req_t req, Ino ino, Request kind, const Handler& handler) {
  const auto work = [=] { guarded(req, ino, kind, handler); };
  mount_of(req).slow->run(work, [&] { return std::function<void()>(work); });
}

/// The kernel has an answer now that tells of an inode. Where something has changed in the meantime, it may
/// have come after the word to forget what it tells.
/// @param changes  Filesystem::changes(), before the answer was made.
inline void note_told(Mount& mount, Ino ino, std::uint64_t changes) {
  mount.forest.note_told(ino);
  if (Filesystem::changes() != changes) mount.invalidator->forget(Stale::one(ino, Stale::What::Attributes));
}

/// What lies in a transaction comes and goes with it, and its size with each write: not to be remembered. Nor
/// is a view that exists only while somebody looks at it.
inline double timeout_of(Ino ino) {
  const Ino local = Forest::local(ino);
  const bool is_passing = TransactionDirectory::owns(local) || Views::is_counted(local);
  return is_passing && local != TransactionDirectory::kViews ? 0 : kForeverSeconds;
}

/// The number that stat(2) shows. That of stats.json stays the same, though each look-up makes another file:
/// cp refuses a file whose number changes between its stat and its open.
inline Ino shown_ino(Ino ino) {
  const Ino local = Forest::local(ino);
  return Views::is_stats(local) ? ino - local + Views::kStatsJson : ino;
}

// What this file system never does. The kernel answers EROFS itself on a read-only mount.
inline void refuse(fuse_req_t req, Ino ino) {
  fuse_reply_err(req, forest_of(req).is_read_only(ino) ? EROFS : EPERM);
}

}  // namespace stfs
