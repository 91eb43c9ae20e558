// Why an archive takes no more commits: its own bytes may be incomplete, and a journal holds the valid ones.
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
  /// Makes check() fail with this error from now on. Only the first error counts.
  /// @param journal  the journal that recovery has to finish first; empty: writing stays stopped for good.
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
  /// Whether recovery has finished the journal: its name is gone, on stable storage. False if writing goes on
  /// anyway, or is stopped for good.
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
