// Takes an archive's locks for a commit, and then checks that the archive is still the one that was opened.
#pragma once

#include <utility>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/commit_options.h"
#include "core/journal/file_lock.h"

namespace stfs {

/// Locks the header's byte shared and the blocks of `ranges` exclusively, in ascending order. Recovers the
/// journals of dead owners. Waits for the journals of living owners. Busy (EBUSY): options.lock_patience has
/// passed.
Result<ArchiveLocks> lock_for_commit(Archive& archive, const std::vector<ByteRange>& ranges,
                                     const CommitOptions& options);
/// Does the same for an edit: locks the header's byte exclusively, and waits for every journal.
Result<ArchiveLocks> lock_for_edit(Archive& archive, const CommitOptions& options);

/// Keeps other readers out of an archive (Archive::keep_readers_out()) during its lifetime. Move-only.
class ReadersKeptOut {
 public:
  ReadersKeptOut() = default;
  /// Busy (EBUSY): there are other readers.
  static Result<ReadersKeptOut> of(Archive& archive);
  ReadersKeptOut(ReadersKeptOut&& other) noexcept : archive_(std::exchange(other.archive_, nullptr)) {}
  ReadersKeptOut& operator=(ReadersKeptOut&& other) noexcept {
    std::swap(archive_, other.archive_);
    return *this;
  }
  ~ReadersKeptOut() {
    if (archive_ != nullptr) archive_->let_readers_in();
  }

 private:
  Archive* archive_ = nullptr;
};

/// Called under the locks. ArchiveChanged (ESTALE): the path names another file, or the header has changed.
/// EMLINK: the archive has several hard links. Adopts foreign changes of the bytes, if on_foreign_change
/// allows that.
Result<void> check_archive(Archive& archive, const CommitOptions& options);

}  // namespace stfs
