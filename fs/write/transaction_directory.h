// `.safetensors/transactions/T/`: many tensors that change together.
//
//   mkdir .safetensors/transactions/T        begins
//   write T/NAME ...                         stages: T shows the whole model, with what is staged in it
//   mv T .safetensors/committed/             commits: the rename's errno is the verdict
//   rm -r T                                  rolls back
//
// committed/ shows the last kMostCommitted transactions, as empty directories. A transaction takes the place
// of an earlier one of its name there, as rename(2) replaces an empty directory.
//
// Names in T are the flat file names of the tensors. T lists only what is staged, every other tensor can be
// looked up too: opened without O_TRUNC, a file starts as the tensor is now, so a part can be patched. A
// close fails with EINVAL where the size is wrong, but the content stays for another try.
//
// Inode numbers: `.safetensors` and its two directories, then for each transaction ever begun a run of
// one directory and one file per tensor. Computed, so a look-up allocates nothing; never reused.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "core/model/transaction_group.h"
#include "core/storage/permissions.h"
#include "fs/tree/inode_table.h"
#include "fs/write/open_file.h"

namespace stfs {

/// Who has made a transaction.
struct Maker {
  uid_t uid = 0;
  gid_t gid = 0;
};

/// Any thread may call. Takes its own mutex last, but for that of a TransactionGroup.
class TransactionDirectory {
 public:
  static constexpr Ino kViews = Ino{1} << 48U;
  static constexpr Ino kTransactions = kViews + 1;
  static constexpr Ino kCommitted = kViews + 2;
  static constexpr std::size_t kMostCommitted = 64;

  /// What the state of a tensor's content is now: a number that differs after every change to it, and its
  /// checksum, which tells whether a change changed anything.
  struct TensorVersion {
    std::uint64_t generation = 0;
    std::string checksum;
  };
  using VersionOf = std::function<Result<TensorVersion>(std::uint32_t tensor)>;

  /// The model must outlive it.
  TransactionDirectory(const Model& model, VersionOf version_of);

  static bool owns(Ino ino) { return ino >= kViews; }
  [[nodiscard]] bool is_directory(Ino ino) const;
  /// Tensor of a file below a transaction.
  [[nodiscard]] std::uint32_t tensor(Ino ino) const {
    return static_cast<std::uint32_t>(place_of(ino).in_run - 1);
  }
  [[nodiscard]] bool exists(Ino ino) const;
  [[nodiscard]] std::optional<Ino> find(Ino directory, std::string_view name) const;
  [[nodiscard]] std::vector<std::pair<std::string, Ino>> list(Ino directory) const;
  [[nodiscard]] Ino parent(Ino ino) const;

  /// mkdir. EPERM elsewhere than in transactions/, EEXIST.
  Result<Ino> begin(Ino directory, std::string_view name, Maker maker = {});
  /// What a directory shows where other users may enter: a transaction is its maker's alone, and in the
  /// directories above it only the maker may move or remove it.
  [[nodiscard]] Permissions restricted(Ino directory, Permissions shown) const;
  /// rmdir. ENOTEMPTY while something is staged.
  Result<void> remove_directory(Ino directory, std::string_view name);
  /// unlink: takes one tensor out of the transaction. EBUSY where it stays open for writing.
  Result<void> remove_file(Ino directory, std::string_view name);
  using Contents = std::vector<std::shared_ptr<PendingContent>>;
  /// What a commit takes from the file system.
  struct Calls {
    TransactionGroup::OptionsOf options_of;
    TransactionGroup::LockOf lock_of;
    TransactionGroup::InTurn in_turn;
    /// The contents of the tensors that have changed; called in the turn of the commit.
    std::function<void(const Contents&)> note_committed;
    /// The commit has failed behind its commit point: these tensors show their new bytes all the same.
    std::function<void(const Contents&)> note_shown;
  };
  /// rename. Between two names in transactions/, or from there to committed/: then it commits.
  Result<void> rename(Ino from, std::string_view name, Ino to, std::string_view new_name, const Calls& calls);

  /// The content that all descriptors of a file share; for writing, notes the tensor's version as the one
  /// that the transaction was made from.
  Result<std::shared_ptr<PendingContent>> open(Ino ino, bool is_for_writing);
  /// The content where something is staged, else null.
  [[nodiscard]] std::shared_ptr<PendingContent> content(Ino ino) const;
  void close(Ino ino);
  /// The kernel's page cache may hold bytes of this file. Before they are read.
  void note_read(Ino ino);
  /// The files that show these tensors and that the page cache may hold: where nothing was staged, they show
  /// what is committed. Taken for forgotten then.
  std::vector<Ino> take_cached(std::uint32_t first_tensor, std::uint32_t last_tensor);
  /// Names of the transactions that hold something and were neither committed nor removed.
  [[nodiscard]] std::vector<std::string> unfinished() const;

 private:
  struct Place {
    std::uint64_t number = 0;  // of the transaction
    std::uint64_t in_run = 0;  // 0: its directory; else 1 + tensor
  };
  struct Member {
    std::shared_ptr<PendingContent> content;
    TensorVersion base;
    unsigned writers = 0;
  };
  struct Begun {
    std::string name;
    Maker maker;
    bool is_committing = false;  // nothing in it may be opened for writing, moved or removed
    bool is_committed = false;
    std::shared_ptr<TransactionGroup> group;
    std::map<std::uint32_t, Member> members;
    std::set<std::uint32_t> cached;  // tensors
  };

  /// The commit of a transaction that is marked as committing.
  Result<void> commit(const Begun& committing, const Calls& calls);
  /// With the mutex held: forgets an earlier one of that name, and the oldest of too many.
  void show_committed(std::uint64_t number, std::string_view name);
  [[nodiscard]] Place place_of(Ino ino) const;
  [[nodiscard]] Ino ino_of(std::uint64_t number, std::uint64_t in_run) const;
  [[nodiscard]] std::optional<std::uint64_t> number_named(Ino directory, std::string_view name) const;
  [[nodiscard]] Result<void> check_for_conflicts(const Begun& begun,
                                                 const std::vector<std::uint32_t>& changed) const;
  [[nodiscard]] std::optional<std::uint32_t> tensor_named(std::string_view file_name) const;

  const Model& model_;
  const VersionOf version_of_;
  const InodeTable flat_;  // names of files in a transaction, whatever the mount's layout

  /// The kernel tells of a last close behind the close's return: who closes and moves at once is not refused
  /// for it. Returns with the lock held, when it is so or after two seconds.
  void wait_for_closes(std::unique_lock<std::mutex>& lock, const std::function<bool()>& are_closed);

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable closes_;
  std::map<std::uint64_t, Begun> begun_;
  std::deque<std::uint64_t> committed_;  // those of begun_, in order of their commits
  std::uint64_t next_number_ = 0;
};

}  // namespace stfs
