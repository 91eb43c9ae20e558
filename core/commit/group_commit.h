// Commits transactions of several archives as one: all of them, or none, even after a crash.
//
// The steps are those of a transaction (transaction.h), side by side:
//   1-4  each archive is checked, locked and planned, in order of the archives' paths, so that two groups
//        can't wait for each other
//   5    each journal is sealed; it names the coordinator, which is sealed last
//   6    each journal is published, then the coordinator: THE COMMIT POINT
//   7-8  each journal is applied, synced and retired; then the coordinator is removed
// A failure before the commit point leaves all archives untouched and all stages as they were, except the
// stages of an archive whose own journal failed (journal.h). A failure after the commit point leaves that
// archive's journal and the coordinator for recovery; the other archives are finished.
#pragma once

#include <vector>

#include "core/commit/transaction.h"

namespace stfs {

/// For one thread, and for one commit.
class GroupCommit {
 public:
  /// Adds a part. A part without stages changes nothing. All arguments must outlive the commit.
  void add(Transaction& transaction, const CommitOptions& options, const Transaction::LockOf& lock_of);

  /// Fails as Transaction::commit() does. EOPNOTSUPP (InvalidArgument): the archives lie in several
  /// directories, so that no record could be found from all of them.
  Result<void> commit();

 private:
  struct Part {
    Transaction* transaction = nullptr;
    const CommitOptions* options = nullptr;
    const Transaction::LockOf* lock_of = nullptr;
    Transaction::Prepared prepared;
  };
  Result<void> commit_unguarded();
  Result<void> commit_several(std::vector<Part*> parts);

  std::vector<Part> parts_;
};

}  // namespace stfs
