// Collects staged tensors of one archive and makes them its content: all of them, or none, even after a
// crash.
//
// A Transaction owns the stages and their journal. CommitProtocol takes the steps of a commit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/archive/archive.h"
#include "core/base/reader_writer_lock.h"
#include "core/commit/commit_options.h"
#include "core/commit/staging.h"
#include "core/journal/journal.h"

namespace stfs {

/// For one thread at a time. Commits of one Archive object must not overlap in time.
class Transaction {
 public:
  /// Touches no file: the first stage() makes the journal.
  explicit Transaction(Archive& archive) : archive_(archive), version_(archive.version()) {}

  /// Returns the pending content of a tensor. The first call for a tensor makes it.
  /// @param tensor  must be in the archive's version at construction, which the transaction pins.
  Result<Staging*> stage(TensorId tensor);
  /// Drops the pending content of a tensor.
  void drop(TensorId tensor);
  [[nodiscard]] bool is_dirty() const;
  /// Whether nothing is staged: there never was a stage, or a commit has ended the stages, by success or by a
  /// failure after the commit point.
  [[nodiscard]] bool is_empty() const { return stages_.empty(); }

  /// Returns the lock that readers of a tensor hold. The commit takes it exclusively at both ends of
  /// applying. In between, readers get the new bytes from the journal.
  using LockOf = std::function<ReaderWriterLock&(TensorId tensor)>;

  /// On success the bytes are as durable as asked for and the stages are gone: make a new Transaction for the
  /// next change. After a failure behind the commit point the stages are gone too, see is_empty(). WrongSize
  /// (EINVAL) names the staged size and the required one. ArchiveChanged (ESTALE): the path names another
  /// file, or the header has changed. EMLINK: the archive has several hard links. Busy (EBUSY): another
  /// process holds a lock.
  Result<void> commit(const CommitOptions& options, const LockOf& lock_of);

 private:
  friend class CommitProtocol;  // commits the stages, then ends them

  Result<Staging*> begin_stage(TensorId tensor);
  [[nodiscard]] Result<void> check_sizes() const;

  Archive& archive_;
  std::shared_ptr<const ArchiveVersion> version_;
  std::unique_ptr<Journal> journal_;
  Stages stages_;
};

}  // namespace stfs
