// Implements the directory operations that make, fill, commit and roll back transactions
// (transaction_directory.h).
#include <map>

#include "fs/base/log.h"
#include "fs/model/filesystem.h"

namespace stfs {
namespace {

tl::unexpected<Error> not_among_transactions() {
  return fail(ErrorCode::InvalidArgument, EPERM, "only transactions are made, moved and removed");
}

}  // namespace

Result<struct stat> Filesystem::make_directory(Ino parent, std::string_view name, Maker maker) {
  if (!TransactionDirectory::owns(parent)) return not_among_transactions();
  const auto made = transactions_.begin(parent, name, maker);
  if (!made) return tl::unexpected(made.error());
  return stat_of(*made);
}

Result<void> Filesystem::remove_directory(Ino parent, std::string_view name) {
  if (!TransactionDirectory::owns(parent)) return not_among_transactions();
  return transactions_.remove_directory(parent, name);
}

Result<void> Filesystem::remove_file(Ino parent, std::string_view name) {
  if (!TransactionDirectory::owns(parent)) return not_among_transactions();
  return transactions_.remove_file(parent, name);
}

Result<std::vector<Stale>> Filesystem::rename(Ino parent, std::string_view name, Ino new_parent,
                                              std::string_view new_name) {
  if (!TransactionDirectory::owns(parent) || !TransactionDirectory::owns(new_parent))
    return not_among_transactions();
  std::map<std::uint32_t, Stale> foreign;  // by shard
  std::vector<Stale> stale;
  bool is_committed = false;
  const auto note_stale = [&](const TransactionDirectory::Contents& contents) {
    for (const auto& content : contents)
      stale.push_back(Stale::one(InodeTable::ino_of_tensor(content->tensor()), Stale::What::Content));
  };
  const TransactionDirectory::Calls calls{
      .options_of = [&](std::uint32_t shard) { return commit_options(shard, foreign[shard]); },
      .lock_of = [this](TensorPlace place) -> ReaderWriterLock& { return lock_of(place); },
      .in_turn = [this](const auto& attempt) { return commit_in_turn(attempt); },
      .note_committed =
          [&](const TransactionDirectory::Contents& contents) {
            for (const auto& content : contents) note_commit(*content);
            for (const auto& [shard, change] : foreign) keep_journal(shard);
            note_stale(contents);
          },
      // After a failure behind the commit point, reads show the new bytes, out of the journal.
      .note_shown =
          [&](const TransactionDirectory::Contents& contents) {
            is_committed = true;
            note_stale(contents);
          }};
  const auto renamed = transactions_.rename(parent, name, new_parent, new_name, calls);
  for (const auto& [shard, change] : foreign) {
    if (change.what != Stale::What::Nothing) stale.push_back(change);
  }
  if (!renamed) {
    for (const Stale& one : stale) forget_(one);
    log::error("{}: transaction {}: {}: {}", model_->path().string(), name,
               is_committed ? "not finished" : "not committed", renamed.error().message);
    return tl::unexpected(renamed.error());
  }
  if (new_parent == TransactionDirectory::kCommitted) note_commit_();
  return stale;
}

}  // namespace stfs
