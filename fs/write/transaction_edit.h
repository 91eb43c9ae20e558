// A transaction that edits the structure, as one edit of the model: the whole edit is committed, or nothing.
//
//   deletions, then renames      all at once
//   forms                        of tensors that keep their bytes
//   new bytes                    of new tensors, and all bytes of patched ones
//   metadata
//
// A patched tensor gets a new place in its shard, or in the delta. The tensor keeps its id, so programs that
// have it open see the new bytes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/base/name_hash.h"
#include "core/model/model_edit.h"
#include "fs/tree/snapshot.h"
#include "fs/write/staged_changes.h"

namespace stfs {

/// Refers to the objects that it is made of. No more changes are staged in the transaction.
class TransactionEdit {
 public:
  /// @param name             the name of the transaction, for messages.
  /// @param check_versions   fails with ESTALE if bytes that the transaction has patched have changed.
  TransactionEdit(std::string name, const Snapshots& snapshots, const StagedChanges& staged,
                  std::function<Result<void>()> check_versions);

  /// ESTALE if the model has changed since the changes were staged: a tensor was deleted, renamed, given
  /// another form or patched, a name was taken, or metadata were changed.
  [[nodiscard]] Result<void> check() const;
  /// Adds all changes to the edit. Call after check().
  Result<void> apply(ModelEdit& edit) const;
  /// Stages all bytes of a tensor of the model that the transaction has patched.
  using CopyPatched = std::function<Result<void>(PendingFile& content, Staging& to)>;
  /// Writes the bytes of tensors that get new bytes.
  Result<void> fill(ModelEdit& edit, const CopyPatched& copy_patched) const;

  /// True if only bytes of tensors change.
  [[nodiscard]] bool is_patch() const { return !staged_.has_structure(); }
  /// Tensors of the model that change in more than their bytes.
  [[nodiscard]] std::vector<TensorId> touched() const;
  /// The touched tensors that other tensors replace.
  [[nodiscard]] std::vector<TensorId> replaced() const;
  /// A tensor that gets new bytes.
  struct Put {
    TensorId tensor{};
    const StagedTensor* staged = nullptr;
  };
  [[nodiscard]] const std::vector<Put>& puts() const { return puts_; }

 private:
  [[nodiscard]] Result<NewTensor::Form> form_of(const Put& put) const;
  /// ENODATA with the names of new files that have no dtype or shape.
  [[nodiscard]] Result<void> check_forms() const;

  const std::string name_;
  const Snapshots& snapshots_;
  const StagedChanges& staged_;
  const std::function<Result<void>()> check_versions_;
  std::vector<Put> puts_;
  NameSet<std::string> new_names_;  // names of tensors that the model does not have
};

}  // namespace stfs
