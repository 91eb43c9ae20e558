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
// committed/ shows the last kMostCommitted transactions, as empty directories. A transaction replaces an
// earlier one of the same name there, as rename(2) replaces an empty directory.
//
// Names in T are the flat file names of the tensors. T lists only staged tensors, but every other tensor can
// be looked up too. A file that is opened without O_TRUNC starts with the tensor's present bytes, so a part
// can be patched. A close fails with EINVAL if the size is wrong, but the content stays for another try.
//
// A transaction with nothing but bytes of tensors changes them in place (TransactionGroup). One with edits of
// the structure is one edit of the model (transaction_edit.h), in which patched tensors get their bytes anew.
//
// T/.safetensors has one entry, npy/, which shows each tensor of the transaction as a NumPy file. T does not
// list it, so `rm -r T` does not meet it. transaction_npy.cc has the rules.
//
// Inode numbers: transactions/ and committed/ come first. Each transaction that was ever begun has
// a run of numbers. The first half is its directory and one file per tensor id, the second half is
// T/.safetensors, one NumPy file per tensor id, and npy/ as the last number. The numbers are computed, so a
// look-up allocates nothing. They are never reused.
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
#include "fs/base/user_counts.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/tensor_tree.h"
#include "fs/write/open_file.h"
#include "fs/write/staged_changes.h"
#include "fs/write/transaction_edit.h"

namespace stfs {

/// The user and the groups that made a transaction, or that ask for something.
struct Maker {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> other_groups{};

  /// Whether a mode and its owners give this right, as the kernel decides it.
  /// @param right  S_IROTH or S_IWOTH.
  [[nodiscard]] bool has(mode_t right, const Permissions& given) const;
};

/// Any thread may call. While its mutex is held, only mutexes of a TransactionGroup or of a NewTensor are
/// taken.
class TransactionDirectory final : public Directory {
 public:
  static constexpr Ino kTransactions = kHiddenIno + 1;
  static constexpr Ino kCommitted = kHiddenIno + 2;
  /// The entries of `.safetensors` besides the views.
  static constexpr std::array<FixedEntry, 2> kEntries = {
      {{"transactions", kTransactions}, {"committed", kCommitted}}};
  static constexpr std::size_t kMostCommitted = 64;

  using VersionOf = std::function<Result<TensorVersion>(TensorId tensor)>;

  /// Model and tree must outlive this object.
  TransactionDirectory(const Versioned<Model>& model, const TensorTree& tree, VersionOf version_of,
                       const UserLimits& limits);

  static bool owns(Ino ino) { return ino > kHiddenIno; }
  [[nodiscard]] Node node(Ino ino) const override;
  /// The tensor of a file in any transaction, also one that has ended. Nothing for directories.
  [[nodiscard]] std::optional<TensorId> tensor_of(Ino ino) const {
    return is_directory(ino) ? std::nullopt : std::optional(tensor(ino));
  }
  Result<Ino> find(Ino directory, std::string_view name) override;
  /// Finds an entry of `.safetensors` itself.
  static std::optional<Ino> find_top(std::string_view name);
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;

  /// mkdir. EPERM outside of transactions/; EEXIST if the name is taken; EDQUOT if the maker has too many.
  Result<Ino> begin(Ino directory, std::string_view name, Maker maker = {});
  /// The permissions that a directory shows on a mount that other users may enter. Only its maker may use a
  /// transaction. In transactions/ and committed/ only the maker may move or remove it.
  [[nodiscard]] Permissions restricted(Ino directory, Permissions shown) const;
  /// rmdir: rolls back. EPERM for other directories; EBUSY during a commit; ENOTEMPTY while it lists tensors.
  Result<void> remove_directory(Ino directory, std::string_view name);

  /// Whether a number is that of a transaction, or of anything in it.
  static bool is_in_transaction(Ino ino);
  /// The same without T/.safetensors and what is below it.
  [[nodiscard]] bool is_transaction(Ino ino) const { return is_in_transaction(ino) && !is_hidden(ino); }

  // T/.safetensors/npy (transaction_npy.cc).
  /// Whether a number is T/.safetensors or below it.
  [[nodiscard]] bool is_hidden(Ino ino) const;
  [[nodiscard]] bool is_npy_directory(Ino ino) const;
  /// @param ino  of a transaction, or of anything in it.
  [[nodiscard]] Ino npy_directory(Ino ino) const { return ino_of(place_of(ino).number, run_ - 1); }
  /// The NumPy file of a tensor in the transaction of `ino`.
  [[nodiscard]] Ino npy_file(Ino ino, TensorId tensor) const;
  /// The file that shows the bytes of a NumPy file's tensor.
  [[nodiscard]] Ino bytes_file(Ino npy) const { return file_of(place_of(npy).number, tensor(npy)); }
  /// What a NumPy file is to become, at its close.
  struct Npy {
    std::string name;    // of a tensor that the transaction does not have
    TensorVersion base;  // of another one, when the file was opened
    std::unique_ptr<NewTensor> data;
    /// Why the file is no tensor, or its program did not end well. The commit fails with this error until the
    /// tensor gets other bytes.
    std::optional<Error> failure;
  };
  /// Stages what a program has written to a NumPy file, instead of what is staged for the tensor's bytes.
  /// ESTALE if the transaction has ended, has deleted the tensor, or shows another one of its name by now;
  /// EBUSY during the commit.
  Result<void> put_npy(Ino file, Npy npy);
  /// The version of a file's tensor that a program changes. Empty for a tensor that the model does not have.
  [[nodiscard]] Result<TensorVersion> base_of(Ino file) const;
  /// ENOSPC if the numbers of a transaction end before that tensor.
  [[nodiscard]] Result<void> check_room(TensorId tensor) const;

  // Files of a transaction. EPERM in other directories; EBUSY during its commit, and for one that stays open
  // for writing.
  /// Who has made the transaction of a directory or file. Nothing if it has ended.
  [[nodiscard]] std::optional<Maker> maker(Ino ino) const;
  /// unlink: takes back what is staged for a tensor, or stages its deletion.
  /// @param editable  why no deletion can be staged, if so.
  Result<void> remove_file(Ino directory, std::string_view name, const Result<void>& editable);
  /// mv in a transaction. @param name  the new one of the tensor, unless a tensor has the file name.
  /// @param flags  of renameat2(2).
  Result<void> rename_file(Ino directory, std::string_view file_name, std::string_view new_file_name,
                           const std::optional<std::string>& name, unsigned flags);
  /// The file for bytes of new tensors of the transaction of an inode.
  std::shared_ptr<StagingFile> new_bytes(Ino ino, Archive& beside);
  /// Makes a tensor that the model does not have, and opens it as open() does. EEXIST if there is one.
  struct Made {
    Ino ino = 0;
    std::shared_ptr<PendingContent> content;
  };
  Result<Made> create(Ino directory, std::string_view file_name, std::string name, TensorId tensor,
                      Archive& beside);
  /// What is staged for a file; nothing is staged in it if there is none.
  [[nodiscard]] std::optional<StagedTensor> staged(Ino file) const;
  /// The name of a file's tensor in its transaction.
  [[nodiscard]] std::string name(Ino file) const;
  /// The form of a file's tensor. Errors as StagedChanges::form().
  [[nodiscard]] Result<NewTensor::Form> form(Ino file) const;
  /// Gives the bytes of a tensor of the model another form. They must fit. Not for files with bytes of any
  /// size.
  Result<void> set_form(Ino file, NewTensor::Form form);
  /// Stages metadata. ENODATA, EEXIST as setxattr(2) and removexattr(2).
  Result<void> set_metadata(Ino directory, std::string_view key, const std::optional<std::string>& value,
                            int flags);
  /// The value of a key as the commit leaves it. Nothing: the key is not there.
  [[nodiscard]] std::optional<std::string> metadata(Ino directory, std::string_view key) const;
  void visit_metadata(Ino directory, const StagedChanges::VisitKey& visit) const;
  /// The names of the tensors that the commit deletes.
  [[nodiscard]] std::vector<std::string> deleted(Ino directory) const;

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
    /// Called if the commit fails behind its commit point: these tensors show their new bytes nevertheless.
    std::function<void(const Contents&)> note_shown;
    /// Commits a transaction that edits the structure.
    std::function<Result<void>(const TransactionEdit&)> edit;
  };
  /// rename. Within transactions/ it renames the transaction; a move from there to committed/ commits it.
  Result<void> rename(Ino from, std::string_view name, Ino to, std::string_view new_name, const Calls& calls);

  /// Opens a file. For writing: returns the content that all descriptors of the file share, and on the first
  /// open notes the tensor's version, which must not have changed at the commit. For reading: returns null.
  /// ESTALE if the transaction has ended; EBUSY for writing during the commit.
  Result<std::shared_ptr<PendingContent>> open(Ino ino, bool is_for_writing);
  /// The file's content, or null if it was not opened for writing.
  [[nodiscard]] std::shared_ptr<PendingContent> content(Ino ino) const;
  void close(Ino ino);
  /// Notes that the kernel's page cache may hold bytes of this file. Call before the bytes are read.
  void note_read(Ino ino);
  /// The files of the tensors from `first` to `last` that the page cache may hold. They become stale with a
  /// commit, because files without staged bytes show what is committed. The files count as forgotten from
  /// then on.
  std::vector<Ino> take_cached(TensorId first, TensorId last);
  /// Whether a transaction has staged bytes of the tensor.
  [[nodiscard]] bool has(TensorId tensor) const;
  /// The same, for bytes whose commit needs the tensor's present place: without edits of the structure.
  [[nodiscard]] bool needs_place(TensorId tensor) const;
  /// Whether a transaction has staged anything for the tensor.
  [[nodiscard]] bool holds(TensorId tensor) const;
  /// The names of the transactions that hold something and were neither committed nor removed.
  [[nodiscard]] std::vector<std::string> unfinished() const;
  /// Whether there is a transaction that was neither committed nor removed.
  [[nodiscard]] bool is_any_open() const;

 private:
  struct Place {
    std::uint64_t number = 0;  // the transaction's number
    std::uint64_t in_run = 0;  // 0 is its directory, else 1 + the tensor's id; from half_ on the NumPy files
  };
  struct Begun {
    std::string name;
    Maker maker;
    bool is_committing = false;  // meanwhile nothing in it may be opened for writing, moved or removed
    bool is_committed = false;
    std::shared_ptr<TransactionGroup> group;
    StagedChanges staged;
    std::shared_ptr<StagingFile> new_bytes{};  // of all new tensors
    std::set<TensorId> cached{};               // tensors whose files the page cache may hold
  };

  [[nodiscard]] bool is_directory(Ino ino) const;
  /// The tensor of a file in a transaction.
  [[nodiscard]] TensorId tensor(Ino ino) const {
    return TensorId{static_cast<std::uint32_t>(place_of(ino).in_run % half_ - 1)};
  }
  /// The directory that holds a directory of ours.
  [[nodiscard]] Ino parent(Ino directory) const;
  [[nodiscard]] std::vector<std::pair<std::string, Ino>> entries(Ino directory) const;
  // Commit a transaction that is marked as committing.
  /// Whether it changes more than bytes in their places. Edits of others may have moved tensors meanwhile,
  /// and the base of a delta is never written.
  [[nodiscard]] bool is_edit(const Begun& committing) const;
  Result<void> commit_patches(const Begun& committing, const Calls& calls);
  Result<void> commit_edit(const Begun& committing, const Calls& calls);
  /// Moves a transaction to committed/. Drops an earlier one of that name, and the oldest if there are more
  /// than kMostCommitted.
  void show_committed(std::uint64_t number, std::string_view name) REQUIRES(mutex_);
  [[nodiscard]] Place place_of(Ino ino) const;
  [[nodiscard]] Ino ino_of(std::uint64_t number, std::uint64_t in_run) const;
  [[nodiscard]] Ino file_of(std::uint64_t number, TensorId tensor) const {
    return ino_of(number, 1 + std::uint64_t{number_of(tensor)});
  }
  [[nodiscard]] std::optional<std::uint64_t> number_named(Ino directory, std::string_view name) const
      REQUIRES(mutex_);
  /// The tensor of a name in npy/.
  [[nodiscard]] std::optional<TensorId> find_npy(const Begun& begun, std::string_view name) const
      REQUIRES(mutex_);
  [[nodiscard]] Result<void> check_for_conflicts(const Begun& begun,
                                                 const std::vector<TensorId>& changed) const;
  /// The transaction of a directory or file, if it was not committed, or null.
  [[nodiscard]] const Begun* begun_at(Ino ino) const REQUIRES(mutex_);
  [[nodiscard]] Begun* begun_at(Ino ino) REQUIRES(mutex_);
  /// EDQUOT if the transaction's maker may not stage one tensor or key more, or so many bytes more.
  [[nodiscard]] Result<void> check_share(const Begun& begun, std::uint64_t metadata_bytes = 0) const
      REQUIRES(mutex_);
  /// Returns the transaction of a directory, and in it the tensor of a file that no program writes, for a
  /// change of what is staged. Waits for closes.
  struct Found {
    Begun* begun = nullptr;
    std::optional<TensorId> tensor;
  };
  Result<Found> find_closed(Ino directory, std::string_view file_name) REQUIRES(mutex_);

  /// Drops contents that are staged no more. Takes their mutexes, so the caller holds none.
  static void forget(const Contents& dropped);
  /// Waits until the files are closed, at most two seconds. The kernel sends the RELEASE after close(2) has
  /// returned, so a program that closes and then moves at once must not be refused.
  void wait_for_closes(const std::function<bool()>& are_closed) REQUIRES(mutex_);

  const Versioned<Model>& model_;
  const VersionOf version_of_;
  const UserLimits limits_;
  const TensorTree& tree_;    // its flat names, whatever the mount's layout
  const std::uint64_t run_;   // inode numbers of each transaction
  const std::uint64_t half_;  // of them

  mutable Mutex mutex_;
  Condition closes_;
  std::map<std::uint64_t, Begun> begun_ GUARDED_BY(mutex_);
  std::deque<std::uint64_t> committed_ GUARDED_BY(mutex_);  // the committed ones of begun_, oldest first
  std::uint64_t next_number_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stfs
