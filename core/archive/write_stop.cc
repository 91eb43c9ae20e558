// Looks whether recovery has removed the journal.
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
  if (!is_there) return pass_on(std::move(is_there));
  if (*is_there) return false;
  // Recovery synced the archive before it removed the name. Sync the removal: a name that came back would be
  // applied again.
  if (auto synced = storage.sync_directory(journal.parent_path()); !synced) return pass_on(std::move(synced));
  return true;
}

}  // namespace stfs
