// Keeps one backing file for all opens of an inode.
#include "fs/kernel/passthrough.h"

#include <unistd.h>

#include "core/base/mutex.h"
#include "fs/base/log.h"

namespace stfs {

#ifdef STFS_HAVE_FUSE_PASSTHROUGH

Result<void> Passthrough::check_possible() {
  if (::geteuid() == 0) return {};
  return fail(ErrorCode::System, EPERM, "the kernel allows it for root only");
}

bool Passthrough::ask_for(fuse_conn_info* conn) {
  if ((conn->capable & FUSE_CAP_PASSTHROUGH) == 0) {
    log::warning("passthrough: needs Linux 6.9 or newer");
    return false;
  }
  conn->want |= FUSE_CAP_PASSTHROUGH;
  // The archive may be on a stacked file system, as in a container.
  conn->max_backing_stack_depth = FUSE_BACKING_STACKED_OVER;
  is_on_ = true;
  return true;
}

int Passthrough::open(fuse_req_t req, Ino ino, int descriptor) {
  if (!is_on_) return 0;
  const MutexLock lock(mutex_);
  Backing& backing = backings_[ino];
  if (backing.id == 0 && !has_failed_) backing.id = fuse_passthrough_open(req, descriptor);
  if (backing.id > 0) {
    ++backing.opens;
    return backing.id;
  }
  backings_.erase(ino);
  if (!has_failed_)
    log::warning("passthrough: the kernel refuses the archive's file: this program serves the reads");
  has_failed_ = true;
  return 0;
}

void Passthrough::release(fuse_req_t req, Ino ino) {
  const MutexLock lock(mutex_);
  const auto found = backings_.find(ino);
  if (found == backings_.end() || --found->second.opens > 0) return;
  fuse_passthrough_close(req, found->second.id);
  backings_.erase(found);
}

#else

Result<void> Passthrough::check_possible() {
  return fail(ErrorCode::System, ENOTSUP, "this program was built with libfuse older than 3.17");
}
bool Passthrough::ask_for(fuse_conn_info*) {
  return false;
}
int Passthrough::open(fuse_req_t, Ino, int) {
  return 0;
}
void Passthrough::release(fuse_req_t, Ino) {}

#endif

}  // namespace stfs
