// `.safetensors/transactions/T/`: a transaction, in which many tensors change together.
//
//   mkdir .safetensors/transactions/T        begins the transaction
//   write T/NAME ...                         stages bytes: T shows the whole model with the staged changes
//   rm, mv, new files, setfattr in T         stage edits of the structure (staged_changes.h)
//   write T/.safetensors/npy/NAME.npy        stages a tensor with the dtype and the shape of a NumPy file
//   setfattr of metadata.KEY on T            stages metadata
//   mv T .safetensors/committed/             commits: the rename's errno is the result
//   rm -r T                                  rolls back
//
// committed/ shows the last kMostCommitted transactions as empty directories. A transaction replaces an
// earlier transaction of the same name there, as rename(2) replaces an empty directory.
//
// Names in T are the flat file names of the tensors. T lists only staged tensors, but every other tensor can
// also be looked up. A file that is opened without O_TRUNC starts with the tensor's present bytes, so a
// program can patch a part. A close fails with EINVAL if the size is wrong, but the content stays, so the
// program can retry.
//
// A transaction that stages only bytes of tensors changes them in place (TransactionGroup). A transaction
// with edits of the structure is one edit of the model (transaction_edit.h). In this edit, patched tensors
// are written again as a whole.
//
// T/.safetensors has one entry, npy/, which shows each tensor of the transaction as a NumPy file. T does not
// list T/.safetensors, so `rm -r T` does not find it. transaction_npy.cc has the rules.
//
// Inode numbers: transactions/ and committed/ have the first two numbers. Each transaction that was ever
// begun has a run of numbers. The first half of the run is its directory and one file per tensor id. The
// second half is T/.safetensors, one NumPy file per tensor id, and npy/ as the last number. The numbers are
// computed, so a look-up allocates nothing. Numbers are never reused.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "core/model/model.h"
#include "core/model/transaction_group.h"
#include "core/storage/permissions.h"
#include "fs/base/maker.h"
#include "fs/base/user_counts.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/snapshot.h"
#include "fs/write/pending_file.h"
#include "fs/write/staged_changes.h"
#include "fs/write/transaction_edit.h"

namespace stfs {

/// Any thread may call. While the mutex of this class is held, only mutexes of a TransactionGroup or of a
/// NewTensor are taken.
class TransactionDirectory final : public Directory {
 public:
  static constexpr Ino kTransactions = kHiddenIno + 1;
  static constexpr Ino kCommitted = kHiddenIno + 2;
  /// The entries of `.safetensors` that are no views, except `pretrained`.
  static constexpr std::array<FixedEntry, 2> kEntries = {
      {{"transactions", kTransactions}, {"committed", kCommitted}}};
  static constexpr std::size_t kMostCommitted = 64;

  using VersionOf = std::function<Result<TensorVersion>(TensorId tensor)>;

  /// @param snapshots  must outlive this object.
  TransactionDirectory(const Snapshots& snapshots, VersionOf version_of, const UserLimits& limits);

  static bool owns(Ino ino) { return ino > kHiddenIno; }
  [[nodiscard]] Node node(Ino ino) const override;
  /// The tensor of a file in any transaction, even after the transaction has ended. Nothing for directories.
  [[nodiscard]] std::optional<TensorId> tensor_of(Ino ino) const {
    return is_directory(ino) ? std::nullopt : std::optional(tensor(ino));
  }
  Result<Ino> find(Ino directory, std::string_view name) override;
  /// Finds an entry of `.safetensors`.
  static std::optional<Ino> find_top(std::string_view name);
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;

  /// mkdir. EPERM outside of transactions/, EEXIST if the name is taken, EDQUOT if the maker has too many
  /// transactions.
  Result<Ino> begin(Ino directory, std::string_view name, Maker maker = {});
  /// The permissions that a directory shows on a mount that other users may enter. Only its maker may use a
  /// transaction. In transactions/ and committed/, only the maker may move or remove the transaction.
  [[nodiscard]] Permissions restricted(Ino directory, Permissions shown) const;
  /// rmdir: rolls back. EPERM for other directories, EBUSY during a commit, ENOTEMPTY while the transaction
  /// lists tensors.
  Result<void> remove_directory(Ino directory, std::string_view name);

  /// True for the number of a transaction, and of every file and directory in it.
  static bool is_in_transaction(Ino ino);
  /// As is_in_transaction(), but false for T/.safetensors and everything below it.
  [[nodiscard]] bool is_transaction(Ino ino) const { return is_in_transaction(ino) && !is_hidden(ino); }

  // T/.safetensors/npy (transaction_npy.cc).
  /// True for the number of T/.safetensors and of everything below it.
  [[nodiscard]] bool is_hidden(Ino ino) const;
  [[nodiscard]] bool is_npy_directory(Ino ino) const;
  /// @param ino  a number of a transaction, or of a file or directory in it.
  [[nodiscard]] Ino npy_directory(Ino ino) const { return ino_of(place_of(ino).number, run_ - 1); }
  /// The NumPy file of a tensor in the transaction of `ino`.
  [[nodiscard]] Ino npy_file(Ino ino, TensorId tensor) const;
  /// The file that shows the bytes of a NumPy file's tensor.
  [[nodiscard]] Ino bytes_file(Ino npy) const { return file_of(place_of(npy).number, tensor(npy)); }
  /// The tensor that a NumPy file becomes at its close.
  struct Npy {
    std::string name;    // the tensor's, if the transaction does not have the tensor
    TensorVersion base;  // the version of any other tensor when the file was opened
    std::unique_ptr<NewTensor> data;
    /// The reason why the file is no tensor, or why its program did not end normally. The commit fails with
    /// this error until the tensor gets other bytes.
    std::optional<Error> failure;
  };
  /// Stages the bytes that a program has written to a NumPy file, and drops the bytes that were staged for
  /// the tensor. ESTALE if the transaction has ended, has deleted the tensor, or now shows another tensor of
  /// this name. EBUSY during the commit.
  Result<void> put_npy(Ino file, Npy npy);
  /// The version of a file's tensor that a program changes. Empty if the model does not have the tensor.
  [[nodiscard]] Result<TensorVersion> base_of(Ino file) const;
  /// ENOSPC if the numbers of a transaction end before this tensor.
  [[nodiscard]] Result<void> check_room(TensorId tensor) const;

  // Files of a transaction. EPERM in other directories. EBUSY during the transaction's commit, and for a file
  // that stays open for writing.
  /// The maker of the transaction of a directory or file. Nothing if the transaction has ended.
  [[nodiscard]] std::optional<Maker> maker(Ino ino) const;
  /// The name of the transaction of a directory or file. Nothing if the transaction has ended.
  [[nodiscard]] std::optional<std::string> transaction_name(Ino ino) const;
  /// unlink: drops the staged content of a tensor, or stages the tensor's deletion.
  /// @param editable  an error if no deletion can be staged.
  Result<void> remove_file(Ino directory, std::string_view name, const Result<void>& editable);
  /// mv in a transaction. @param name  the new name of the tensor, unless a tensor has the file name.
  /// @param flags  of renameat2(2).
  Result<void> rename_file(Ino directory, std::string_view file_name, std::string_view new_file_name,
                           const std::optional<std::string>& name, unsigned flags);
  /// The file for bytes of new tensors of an inode's transaction.
  std::shared_ptr<StagingFile> new_bytes(Ino ino, Archive& beside);
  /// Makes a tensor that the model does not have, and opens it as open() does. EEXIST if the file name is
  /// taken.
  struct Made {
    Ino ino = 0;
    std::shared_ptr<PendingFile> content;
  };
  Result<Made> create(Ino directory, std::string_view file_name, std::string name, TensorId tensor,
                      Archive& beside);
  /// The staged content of a file; nothing if no content is staged for it.
  [[nodiscard]] std::optional<StagedTensor> staged(Ino file) const;
  /// The name of a file's tensor in its transaction.
  [[nodiscard]] std::string name(Ino file) const;
  /// The form of a file's tensor. Returns the errors of StagedChanges::form().
  [[nodiscard]] Result<NewTensor::Form> form(Ino file) const;
  /// Gives the bytes of a tensor of the model another form, which must fit the bytes. Not for files whose
  /// size may change.
  Result<void> set_form(Ino file, NewTensor::Form form);
  /// Stages metadata. ENODATA and EEXIST as in setxattr(2) and removexattr(2).
  Result<void> set_metadata(Ino directory, std::string_view key, const std::optional<std::string>& value,
                            int flags);
  /// The value of a key after the commit. Nothing if the key will not exist.
  [[nodiscard]] std::optional<std::string> metadata(Ino directory, std::string_view key) const;
  void visit_metadata(Ino directory, const StagedChanges::VisitKey& visit) const;
  /// The names of the tensors that the commit deletes. Stops at the first name beyond most_bytes.
  [[nodiscard]] std::vector<std::string> deleted(Ino directory, std::size_t most_bytes) const;

  using Contents = StagedChanges::Contents;
  /// The calls of the file system that a commit needs.
  struct Calls {
    TransactionGroup::LockOf lock_of;
    /// Runs attempts to commit to these shards, with their turns (fs/model/shard_writer.h).
    /// @param check  ShardWriter::set_check().
    std::function<Result<void>(
        const Committers::Shards& shards, const std::optional<Committers::Patch>& patch,
        const std::function<Result<void>()>& check,
        const std::function<Result<void>(const TransactionGroup::OptionsOf&)>& attempt)>
        in_turn;
    /// Gets the contents of the tensors that have changed. Called in the turn of the commit.
    std::function<void(const Contents&)> note_committed;
    /// Called if the commit fails past its commit point. These tensors then show their new bytes.
    std::function<void(const Contents&)> note_shown;
    /// Commits a transaction that edits the structure.
    std::function<Result<void>(const TransactionEdit&)> edit;
  };
  /// rename. Within transactions/ it renames the transaction. A move from transactions/ to committed/ commits
  /// the transaction.
  Result<void> rename(Ino from, std::string_view name, Ino to, std::string_view new_name, const Calls& calls);

  /// Opens a file. For reading: returns null. For writing: returns the content that all descriptors of the
  /// file share. The first open for writing notes the tensor's version, which must be the same at the commit.
  /// ESTALE if the transaction has ended; EBUSY for writing during the commit.
  Result<std::shared_ptr<PendingFile>> open(Ino ino, bool is_for_writing);
  /// The file's content, or null if the file was never opened for writing.
  [[nodiscard]] std::shared_ptr<PendingFile> content(Ino ino) const;
  void close(Ino ino);
  /// Notes that the kernel's page cache may hold bytes of this file. Call before the bytes are read.
  void note_read(Ino ino);
  /// Returns the files of the tensors from `first` to `last` that the page cache may hold. A commit makes
  /// these files stale, because files without staged bytes show the committed bytes. The files are no longer
  /// marked as cached after this call.
  std::vector<Ino> take_cached(TensorId first, TensorId last);
  /// True if a transaction has staged bytes of the tensor.
  [[nodiscard]] bool has(TensorId tensor) const;
  /// As has(), for bytes whose commit needs the tensor's present place: transactions without edits of the
  /// structure.
  [[nodiscard]] bool needs_place(TensorId tensor) const;
  /// True if a transaction has staged any change of the tensor.
  [[nodiscard]] bool holds(TensorId tensor) const;
  /// The names of the transactions that hold changes and were neither committed nor removed.
  [[nodiscard]] std::vector<std::string> unfinished() const;
  /// True if a transaction exists that was neither committed nor removed.
  [[nodiscard]] bool is_any_open() const;

 private:
  struct Place {
    std::uint64_t number = 0;  // the transaction's number
    std::uint64_t in_run = 0;  // 0 is its directory, else 1 + the tensor's id; from half_ on the NumPy files
  };
  /// The part of the maker's limit that a transaction uses.
  struct Charged {
    std::size_t amount = 0;
    UserCounts::Share share{};
  };
  struct Begun {
    std::string name;
    Maker maker;
    bool is_committing = false;  // until it ends, no file in it may be opened for writing, moved or removed
    bool is_committed = false;
    std::shared_ptr<TransactionGroup> group;
    StagedChanges staged;
    std::shared_ptr<StagingFile> new_bytes{};  // bytes of all new tensors
    std::set<TensorId> cached{};               // tensors whose files the page cache may hold
    UserCounts::Share open_share{};            // of the maker, until the transaction is committed
    Charged staged_charge{}, text_charge{};
  };

  [[nodiscard]] bool is_directory(Ino ino) const;
  /// Returns the tensor of a file in a transaction.
  [[nodiscard]] TensorId tensor(Ino ino) const {
    return TensorId{static_cast<std::uint32_t>(place_of(ino).in_run % half_ - 1)};
  }
  /// Returns the parent of a directory that this class shows.
  [[nodiscard]] Ino parent(Ino directory) const;
  [[nodiscard]] std::vector<std::pair<std::string, Ino>> entries(Ino directory) const;
  // Functions that commit a transaction marked as committing:
  /// True if the transaction changes more than bytes in their places. Edits of others may have moved its
  /// tensors in the meantime, and the base of a delta is never written.
  [[nodiscard]] bool is_edit(const Begun& committing) const;
  Result<void> commit_patches(const Begun& committing, const Calls& calls);
  Result<void> commit_edit(const Begun& committing, const Calls& calls);
  /// Moves a transaction to committed/. Drops an earlier transaction of the same name, and the oldest if
  /// there are more than kMostCommitted.
  void show_committed(std::uint64_t number, std::string_view name) REQUIRES(mutex_);
  [[nodiscard]] Place place_of(Ino ino) const;
  [[nodiscard]] Ino ino_of(std::uint64_t number, std::uint64_t in_run) const;
  [[nodiscard]] Ino file_of(std::uint64_t number, TensorId tensor) const {
    return ino_of(number, 1 + std::uint64_t{number_of(tensor)});
  }
  [[nodiscard]] std::optional<std::uint64_t> number_named(Ino directory, std::string_view name) const
      REQUIRES(mutex_);
  /// Returns the tensor of a name in npy/.
  [[nodiscard]] std::optional<TensorId> find_npy(const Begun& begun, std::string_view name) const
      REQUIRES(mutex_);
  [[nodiscard]] Result<void> check_for_conflicts(const Begun& begun,
                                                 const std::vector<TensorId>& changed) const;
  /// Returns the transaction of a directory or file; null if it was committed.
  [[nodiscard]] const Begun* begun_at(Ino ino) const REQUIRES(mutex_);
  [[nodiscard]] Begun* begun_at(Ino ino) REQUIRES(mutex_);
  /// EDQUOT if the transaction's maker may not stage another tensor or key, or this many more bytes.
  Result<void> check_share(const Begun& begun, std::uint64_t text_bytes = 0) REQUIRES(mutex_);
  /// Counts what all transactions of a user in this model use now.
  void charge(uid_t user) REQUIRES(mutex_);
  /// Returns the transaction of a directory, and the tensor of a file in it that no program is writing, so
  /// that the caller can change the staged content. Waits for closes.
  struct Found {
    Begun* begun = nullptr;
    std::optional<TensorId> tensor;
  };
  Result<Found> find_closed(Ino directory, std::string_view file_name) REQUIRES(mutex_);

  /// Drops contents that are not staged any more. Takes their mutexes, so the caller holds none of them.
  static void drop(const Contents& dropped);
  /// Waits until the files are closed, at most two seconds. The kernel sends the RELEASE after close(2) has
  /// returned, so a program that closes a file and moves the transaction immediately must not be refused.
  void wait_for_closes(const std::function<bool()>& are_closed) REQUIRES(mutex_);

  const Snapshots& snapshots_;
  const VersionOf version_of_;
  const UserLimits limits_;
  // All models of the mount count together.
  UserCounts open_{"open transactions", limits_.transactions};
  UserCounts staged_{"staged tensors and keys of metadata in transactions", limits_.staged};
  UserCounts text_bytes_{"bytes of metadata, names and shapes in transactions", limits_.metadata_bytes};
  const std::uint64_t run_;   // inode numbers of each transaction
  const std::uint64_t half_;  // half of run_

  mutable Mutex mutex_;
  Condition closes_;
  std::map<std::uint64_t, Begun> begun_ GUARDED_BY(mutex_);
  std::deque<std::uint64_t> committed_ GUARDED_BY(mutex_);  // numbers in begun_, oldest first
  std::uint64_t next_number_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stfs
