// Stops the commits of an archive whose own bytes may be incomplete while a journal holds the valid ones.
#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/storage/file.h"

namespace stfs {

/// Any thread may call.
class WriteStop {
 public:
  /// Makes check() fail with this error from now on. Keeps the first error if called again.
  /// @param journal  the journal that recovery has to finish first; empty: writing stays stopped.
  void begin(Error why, std::filesystem::path journal) {
    const MutexLock lock(mutex_);
    if (why_) return;
    why_ = std::move(why);
    journal_ = std::move(journal);
  }
  [[nodiscard]] Result<void> check() const {
    const MutexLock lock(mutex_);
    return why_ ? Result<void>(tl::unexpected(*why_)) : Result<void>();
  }
  /// Returns true if recovery has finished the journal: its name is removed, and the removal is on stable
  /// storage. Returns false if writing is not stopped, or is stopped without a journal.
  Result<bool> may_end(Storage& storage) const;
  void end() {
    const MutexLock lock(mutex_);
    why_.reset();
  }

 private:
  mutable Mutex mutex_;  // innermost
  std::optional<Error> why_ GUARDED_BY(mutex_);
  std::filesystem::path journal_ GUARDED_BY(mutex_);
};

}  // namespace stfs
