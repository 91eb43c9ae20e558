// An edit of a model by the names of its tensors: of one archive, or of all shards of an index as one.
//
//   the shards' headers and bytes    each shard that changes has an edit of its own (commit/archive_edit.h)
//   the index                        is replaced in the same transaction, if a name or a size changes. The
//                                    journal of the first shard that the new index names has it. So the lock
//                                    of the first shard is the index's, too: an edit that changes which shard
//                                    is the first one also locks all shards before it. Whoever holds the lock
//                                    has finished what others have committed to the index
//   a new tensor                     goes to the shard of the tensor that it replaces, else to the last shard
//   metadata                         of shards that have the key, else of the first shard. Keys of shards
//                                    that lose all tensors go to the first shard that keeps some
//
// Of a model with a delta, only the delta on top changes. It gets new tensors, also those that replace one of
// the base, and the metadata. Its metadata say which tensors of the base are gone, or have another name or
// form: their bytes stay in the base (delta.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/name_hash.h"
#include "core/commit/archive_edit.h"
#include "core/commit/commit_options.h"
#include "core/commit/compaction.h"
#include "core/commit/transaction.h"
#include "core/format/dtype.h"
#include "core/model/delta.h"
#include "core/model/model.h"
#include "core/model/transaction_group.h"

namespace stfs {

/// First the changes, then begin(), then the bytes of new tensors, then commit(). For one thread. The model
/// shows the version before, also afterwards: Model::next() makes the one that follows. A failed change
/// changes nothing.
class ModelEdit {
 public:
  /// The model must be whole (Model::check_whole()), be opened for writing, and outlive the edit. EROFS: of a
  /// delta, if later nothing could tell whether its base has changed (make_provable(), delta_base.h).
  static Result<ModelEdit> of(const Model& model);

  // NotFound (ENOENT): there is no tensor of that name.
  Result<void> remove(std::string_view name);
  /// Renames all of them at once: names may be exchanged. EEXIST: two tensors would have one name.
  struct Renaming {
    std::string from;
    std::string to;
  };
  Result<void> rename(std::span<const Renaming> renamings);
  /// Keeps the bytes. WrongSize (EINVAL): they have another size.
  Result<void> reinterpret(std::string_view name, Dtype dtype, std::vector<std::uint64_t> shape);
  /// Makes a new tensor, or gives one of that name new bytes, dtype and shape.
  Result<void> put(std::string name, Dtype dtype, std::vector<std::uint64_t> shape);
  /// @param value  nothing: removes the key, if it is there.
  Result<void> set_metadata(std::string_view key, const std::optional<std::string>& value);

  /// For a program that goes on with the model and has readers of its own: tensors that the edit deletes, and
  /// those of Model::removed(), keep their bytes.
  void keep_deleted() { keeps_deleted_ = true; }
  /// Moves tensors out of the header's way, as an edit that makes the header longer would do.
  void make_room(std::uint32_t shard) {
    touch(shard);
    makes_room_ = true;
  }

  /// Whether nothing is changed.
  [[nodiscard]] bool is_empty() const { return !is_changed_; }
  /// Plans the edit, without changing a file.
  Result<void> plan(bool uses_locks);
  /// Of all fillers afterwards, and by which the archives become shorter, in bytes; after plan() or begin().
  [[nodiscard]] std::uint64_t freed_bytes() const;
  /// Bytes of tensors that move to make room for a header; after plan() or begin().
  [[nodiscard]] std::uint64_t moved_bytes() const;

  /// Plans the edit and makes its journals.
  Result<void> begin(bool uses_locks);
  /// Makes it the next step of a compaction of one shard (commit/compaction.h), and nothing else.
  /// @return false: no gap is left to close.
  Result<bool> begin_compaction(std::uint32_t shard, Gaps gaps);
  /// The pending content of a tensor of put(). Null for others, and if it has no bytes.
  [[nodiscard]] Staging* stage(std::string_view name);
  Result<void> commit(const CommitOptions& options);
  /// The same, with options for each shard and with the locks of this program's readers.
  Result<void> commit(const TransactionGroup::OptionsOf& options_of, const TransactionGroup::LockOf& lock_of);
  /// The archives that change, with what is done to them; after plan() or begin().
  struct Changed {
    std::uint32_t shard = 0;
    const EditLayout* layout = nullptr;
  };
  [[nodiscard]] std::span<const Changed> changed() const { return changed_; }
  /// The tensors that get another place, without those of put(); after begin().
  [[nodiscard]] const std::vector<TensorPlace>& moved() const { return moved_; }

 private:
  struct Row {
    std::uint32_t shard = 0;
    EditedTensor tensor;
    bool is_removed = false;
    std::string base_name{};  // of a tensor that keeps the base's bytes
    std::uint32_t place = 0;  // position in its shard's ArchiveEdit, after begin()
  };
  using RowByName = NameMap<std::string, std::uint32_t>;
  explicit ModelEdit(const Model& model) : model_(&model) {}
  [[nodiscard]] Result<std::uint32_t> find(std::string_view name) const;
  /// Of the base of a delta nothing is touched, but the delta.
  void touch(std::uint32_t shard) {
    is_changed_ = is_touched_[model_->delta() ? model_->top() : shard] = true;
  }
  /// Adds the tensors that a delta keeps of its base.
  void add_base();
  /// The delta after the edit.
  [[nodiscard]] Delta next_delta() const;
  Result<void> rename_unguarded(std::span<const Renaming> renamings);
  Result<void> reinterpret_unguarded(std::string_view name, Dtype dtype, std::vector<std::uint64_t> shape);
  Result<void> put_unguarded(std::string name, Dtype dtype, std::vector<std::uint64_t> shape);
  void set_metadata_unguarded(std::string_view key, const std::optional<std::string>& value);
  void add_layout(std::uint32_t shard, EditLayout layout);
  /// Fills in moved().
  void note_moved();
  /// Gives the metadata of shards that the new index does not name to the first shard that it names.
  void keep_metadata();
  /// The edits of the shards that change.
  [[nodiscard]] std::map<std::uint32_t, ArchiveEdit> edits();
  [[nodiscard]] Result<std::string> index_text() const;
  /// The first shard that keeps a tensor.
  [[nodiscard]] std::uint32_t first_named() const;
  /// Adds the new index to the transaction of first_named().
  Result<void> begin_index(bool uses_locks);

  const Model* model_;
  std::vector<Row> rows_;
  RowByName by_name_;
  std::vector<Metadata> metadata_;  // by shard
  std::vector<bool> is_touched_;    // by shard
  bool is_changed_ = false;
  bool is_index_changed_ = false;
  bool keeps_deleted_ = false;
  bool makes_room_ = false;
  std::map<std::uint32_t, EditLayout> layouts_;  // by shard
  std::vector<Changed> changed_;                 // layouts_
  std::vector<TensorPlace> moved_;
  std::map<std::uint32_t, Transaction> transactions_;  // by shard
};

}  // namespace stfs
