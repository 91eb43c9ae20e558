// The directory operations that make, fill, commit and roll back transactions (transaction_directory.h).
#include <map>

#include "fs/filesystem.h"
#include "fs/log.h"

namespace stfs {
namespace {

tl::unexpected<Error> not_here() {
  return fail(ErrorCode::InvalidArgument, EPERM, "only transactions are made, moved and removed");
}

}  // namespace

Result<struct stat> Filesystem::make_directory(Ino parent, std::string_view name) {
  if (!TransactionDirectory::owns(parent)) return not_here();
  const auto made = transactions_.begin(parent, name);
  if (!made) return tl::unexpected(made.error());
  return stat_of(*made);
}

Result<void> Filesystem::remove_directory(Ino parent, std::string_view name) {
  if (!TransactionDirectory::owns(parent)) return not_here();
  return transactions_.remove_directory(parent, name);
}

Result<void> Filesystem::remove_file(Ino parent, std::string_view name) {
  if (!TransactionDirectory::owns(parent)) return not_here();
  return transactions_.remove_file(parent, name);
}

Result<std::vector<Stale>> Filesystem::rename(Ino parent, std::string_view name, Ino new_parent,
                                              std::string_view new_name) {
  if (!TransactionDirectory::owns(parent) || !TransactionDirectory::owns(new_parent)) return not_here();
  const std::scoped_lock commit_lock(commit_mutex_);
  std::map<std::uint32_t, Stale> foreign;  // by shard
  const auto options_of = [&](std::uint32_t shard) {
    auto options = commit_options(shard, foreign[shard]);
    if (options) options->trust = {};  // a conflict must not be missed
    return options;
  };
  const auto lock = [this](TensorPlace place) -> ReaderWriterLock& { return lock_of(place); };
  auto changed = transactions_.rename(parent, name, new_parent, new_name, options_of, lock);
  if (!changed) {
    // What failed behind the commit point shows new bytes, out of the journal.
    const Ino first = InodeTable::ino_of_tensor(0);
    forget_({first, first + model_->tensors().size() - 1, Stale::What::Content});
    log::error("{}: transaction {}: not committed: {}", model_->path().string(), name,
               changed.error().message);
    return tl::unexpected(changed.error());
  }
  note_commit_();
  std::vector<Stale> stale;
  for (const auto& [shard, change] : foreign) {
    stale.push_back(change);
    keep_journal(shard);
  }
  for (const auto& content : *changed) {
    note_commit(*content);
    stale.push_back(Stale::one(InodeTable::ino_of_tensor(content->tensor()), Stale::What::Content));
  }
  return stale;
}

}  // namespace stfs
