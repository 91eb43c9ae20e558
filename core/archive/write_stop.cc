#include "core/archive/write_stop.h"

#include "core/base/mutex.h"
#include "core/journal/journal_file.h"

namespace stfs {

Result<bool> WriteStop::may_end(Storage& storage) const {
  std::filesystem::path journal;
  {
    const MutexLock lock(mutex_);
    if (why_) journal = journal_;
  }
  if (journal.empty()) return false;
  auto is_there = is_listed(storage, journal);
  RETURN_IF_ERROR(is_there);
  if (*is_there) return false;
  // Recovery synced the archive before it removed the name. Sync the removal: a name that came back would be
  // applied again.
  RETURN_IF_ERROR(storage.sync_directory(journal.parent_path()));
  return true;
}

}  // namespace stfs
