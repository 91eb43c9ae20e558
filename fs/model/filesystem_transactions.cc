// Implements the directory operations that make, fill, commit and roll back transactions
// (transaction_directory.h).
#include <fmt/format.h>
#include <linux/fs.h>

#include "fs/base/log.h"
#include "fs/model/filesystem.h"

namespace stfs {
namespace {

tl::unexpected<Error> not_among_transactions() {
  return fail(ErrorCode::InvalidArgument, EPERM, "only transactions can be created, moved and removed");
}

}  // namespace

Result<struct stat> Filesystem::make_directory(Ino parent, std::string_view name, Maker maker) {
  const Node directory = resolve(parent);
  if (directory.kind == Node::Kind::Directory) return make_tree_directory(directory.ino, name);
  if (!directory.is_staged()) return not_among_transactions();
  const auto made = transactions_.begin(directory.ino, name, std::move(maker));
  if (!made) return tl::unexpected(made.error());
  return stat_of(resolve(*made));
}

Result<void> Filesystem::remove_directory(Ino parent, std::string_view name) {
  const Node directory = resolve(parent);
  if (directory.kind == Node::Kind::Directory) return remove_tree_directory(directory.ino, name);
  if (!directory.is_staged()) return not_among_transactions();
  return transactions_.remove_directory(directory.ino, name);
}

Result<Outdated> Filesystem::rename(Ino parent, std::string_view name, Ino new_parent,
                                    std::string_view new_name, unsigned flags) {
  const Node from = resolve(parent);
  const Node to = resolve(new_parent);
  if (from.kind == Node::Kind::Directory && to.kind == Node::Kind::Directory)
    return rename_tensor(from.ino, name, to.ino, new_name, flags);
  if (transactions_.is_hidden(from.ino)) return not_among_transactions();
  if (drafts_.find(from.ino, name)) return rename_checkpoint(from.ino, name, to.ino, new_name);
  if (!from.is_staged() || !to.is_staged()) return not_among_transactions();
  if (transactions_.is_transaction(from.ino) && from.ino == to.ino)
    return rename_staged(from.ino, name, new_name, flags);
  if (to.ino == TransactionDirectory::kCommitted) {
    const auto transaction = transactions_.find(from.ino, name);
    if (transaction && !drafts_.wait_for_ends_in(transactions_.npy_directory(*transaction))) {
      return fail(ErrorCode::Busy, EBUSY,
                  fmt::format("a file in {}/.safetensors/npy is still open for writing", name));
    }
  }
  if ((flags & RENAME_EXCHANGE) != 0) return fail(ErrorCode::InvalidArgument, EINVAL, "not for transactions");
  Foreign foreign;
  std::vector<Stale> found;
  Outdated edited;
  bool is_committed = false;
  const auto note_stale = [&](const TransactionDirectory::Contents& contents) {
    for (const auto& content : contents)
      found.push_back(stale(InodeTable::ino_of_tensor(content->tensor()), Stale::What::Content));
  };
  const TransactionDirectory::Calls calls{
      .lock_of = [this](TensorPlace place) -> ReaderWriterLock& { return reader_.lock_of(place); },
      .in_turn = [&](const auto& shards,
                     const auto& attempt) { return commit_in_turn(shards, foreign, attempt); },
      .note_committed =
          [&](const TransactionDirectory::Contents& contents) {
            for (const auto& content : contents) note_commit(*content);
            note_stale(contents);
          },
      // After a failure behind the commit point, reads show the new bytes, out of the journal.
      .note_shown =
          [&](const TransactionDirectory::Contents& contents) {
            is_committed = true;
            note_stale(contents);
          },
      .edit = [&](const TransactionEdit& staged) { return commit_staged(staged, edited); }};
  const auto renamed = transactions_.rename(from.ino, name, to.ino, new_name, calls);
  for (const auto& [shard, change] : foreign) {
    if (change.what != Stale::What::Nothing) found.push_back(change);
  }
  if (!renamed) {
    for (const Stale& one : found) forget_(one);
    log::error("{}: transaction {}: {}: {}", model_->path().string(), name,
               is_committed ? "not finished" : "not committed", renamed.error().message);
    return tl::unexpected(renamed.error());
  }
  if (!edited.stale.empty()) return edited;
  if (to.ino == TransactionDirectory::kCommitted) note_commit_();
  return Outdated{.stale = std::move(found), .entries = {}};
}

}  // namespace stfs
