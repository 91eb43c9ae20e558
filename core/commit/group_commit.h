// Transactions of several archives, committed as one: all of them, or none, whatever happens meanwhile.
//
// The steps are a transaction's (transaction.h), side by side:
//   1-4  each is checked, locked and planned, in order of the archives' paths, so that two groups can't wait
//   for
//        each other
//   5    each journal is sealed; it names the coordinator, which is sealed last
//   6    each journal is published, then the coordinator: THE COMMIT POINT
//   7-8  each is applied, synced and retired; the last one takes the coordinator with it
// A failure before the commit point leaves all archives untouched and the stages as they were, but for the
// one whose own journal failed (journal.h). One behind it leaves that archive's journal, and the coordinator,
// for recovery; the others are finished.
#pragma once

#include <vector>

#include "core/commit/transaction.h"

namespace stfs {

/// Used by one thread, once.
class GroupCommit {
 public:
  /// A part without stages changes nothing. What is named here must outlive the commit.
  void add(Transaction& transaction, const CommitOptions& options, const Transaction::LockOf& lock_of);

  /// The errors are Transaction::commit()'s. EOPNOTSUPP (InvalidArgument): the archives lie in several
  /// directories, and no record could be found from all of them.
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
