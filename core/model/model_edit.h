// An edit of a model by the names of its tensors: of one archive, or of all shards of an index as one.
//
//   the shards' headers and bytes    each shard that changes has a separate edit (commit/archive_edit.h)
//   the index                        is replaced in the same transaction, if a name or a size changes. The
//                                    new text is in the journal of the first shard that the new index names.
//                                    The lock of this shard also guards the index: an edit that changes which
//                                    shard is the first one also locks all shards before it. A process that
//                                    gets the lock first finishes all committed changes of the index
//   a new tensor                     goes to the shard of the tensor that it replaces, else to the last shard
//   metadata                         change in the shards that have the key, else in the first shard. Keys of
//                                    shards that lose all tensors go to the first shard that keeps some
//
// In a model with a delta, only the delta on top changes. The delta gets the metadata and the new tensors,
// including tensors that replace a tensor of the base. The delta's metadata list the tensors of the base that
// are removed or have another name, dtype or shape. Their bytes stay in the base (delta.h).
#pragma once

#include <cstdint>
#include <deque>
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

/// The order of calls: all changes, then begin(), then the bytes of new tensors, then commit(). Used by one
/// thread. The model keeps showing the version before the edit: Model::next() makes the model that follows. A
/// change that fails changes nothing.
class ModelEdit {
 public:
  /// The model must be whole (Model::check_whole()), be opened for writing, and outlive the edit. EROFS: the
  /// model has a delta, and nothing could detect later changes of the delta's base (make_provable(),
  /// delta_base.h).
  static Result<ModelEdit> of(const Model& model);
  /// Makes the checks of of().
  static Result<void> check(const Model& model);

  // These calls return NotFound (ENOENT) if there is no tensor of this name.
  Result<void> remove(std::string_view name);
  /// Renames all tensors at once, so names may be exchanged. EEXIST: two tensors would have one name.
  struct Renaming {
    std::string from;
    std::string to;
  };
  Result<void> rename(std::span<const Renaming> renamings);
  /// Keeps the bytes. WrongSize (EINVAL): the bytes have another size.
  Result<void> reinterpret(std::string_view name, Dtype dtype, std::vector<std::uint64_t> shape);
  /// Makes a new tensor, or gives the tensor of this name new bytes, dtype and shape.
  Result<void> put(std::string name, Dtype dtype, std::vector<std::uint64_t> shape);
  /// @param value  nothing: removes the key, if it exists.
  Result<void> set_metadata(std::string_view key, const std::optional<std::string>& value);

  /// Keeps the bytes of tensors that the edit deletes, and of tensors in Model::removed(). For a program that
  /// continues to use the model and has open files of its tensors.
  void keep_deleted() { keeps_deleted_ = true; }
  /// Moves tensors out of the header's way, as an edit that makes the header longer would do.
  void make_room(std::uint32_t shard) {
    touch(shard);
    makes_room_ = true;
  }

  /// Returns true if nothing is changed.
  [[nodiscard]] bool is_empty() const { return !is_changed_; }
  /// Plans the edit, without changing a file.
  Result<void> plan(bool uses_locks);
  /// The size of all fillers after the edit, plus the bytes by which the archives become shorter; after
  /// plan() or begin().
  [[nodiscard]] std::uint64_t freed_bytes() const;
  /// The bytes of tensors that move to make room for a header; after plan() or begin().
  [[nodiscard]] std::uint64_t moved_bytes() const;

  /// Plans the edit and makes its journals.
  Result<void> begin(bool uses_locks);
  /// Makes this edit the next step of a compaction of one shard (commit/compaction.h), and nothing else.
  /// @param left, check  as in next_compaction_step().
  /// @return false: no gap is left to close.
  Result<bool> begin_compaction(std::uint32_t shard, std::span<const ByteRange> left,
                                const PlanningEffort::Check& check);
  /// Returns the pending content of a tensor of put(). Null for other tensors, and for a tensor without
  /// bytes.
  [[nodiscard]] Staging* stage(std::string_view name);
  Result<void> commit(const CommitOptions& options);
  /// Does the same, with options for each shard and with the locks of this program's readers.
  Result<void> commit(const TransactionGroup::OptionsOf& options_of, const TransactionGroup::LockOf& lock_of);
  /// The archives that change, each with its planned layout; after plan() or begin().
  struct Changed {
    std::uint32_t shard = 0;
    const EditLayout* layout = nullptr;
  };
  [[nodiscard]] std::span<const Changed> changed() const { return changed_; }
  /// The tensors that get another place, except tensors of put(); after begin().
  [[nodiscard]] const std::vector<TensorPlace>& moved() const { return moved_; }

 private:
  struct Row {
    std::uint32_t shard = 0;
    EditedTensor tensor;
    bool is_removed = false;
    std::string_view base_name{};  // of a tensor whose bytes stay in the base
    std::uint32_t place = 0;       // position in its shard's ArchiveEdit, after begin()
  };
  using RowByName = NameMap<std::string_view, std::uint32_t>;
  explicit ModelEdit(const Model& model) : model_(&model) {}
  /// Returns the row of a tensor that the model has under this name and that is neither removed nor renamed.
  [[nodiscard]] std::optional<std::uint32_t> unchanged(std::string_view name) const;
  [[nodiscard]] std::optional<std::uint32_t> row_of(std::string_view name) const;
  [[nodiscard]] Result<std::uint32_t> find(std::string_view name) const;
  /// An edit of a tensor of the base touches only the delta.
  void touch(std::uint32_t shard) {
    is_changed_ = is_touched_[model_->delta() ? model_->top() : shard] = true;
  }
  /// Adds the tensors that a delta keeps from its base.
  void add_base();
  /// Returns the delta after the edit.
  [[nodiscard]] Delta next_delta() const;
  Result<void> rename_unguarded(std::span<const Renaming> renamings);
  Result<void> reinterpret_unguarded(std::string_view name, Dtype dtype, std::vector<std::uint64_t> shape);
  Result<void> put_unguarded(std::string name, Dtype dtype, std::vector<std::uint64_t> shape);
  void set_metadata_unguarded(std::string_view key, const std::optional<std::string>& value);
  void add_layout(std::uint32_t shard, std::shared_ptr<const EditLayout> layout);
  /// Fills in moved().
  void note_moved();
  /// Gives the metadata of shards that the new index does not name to the first shard that it names.
  void keep_metadata();
  /// Returns the edits of the shards that change.
  [[nodiscard]] std::map<std::uint32_t, ArchiveEdit> edits();
  /// Returns the index after the edit. @param before  the present one.
  [[nodiscard]] Result<std::string> index_text(std::string_view before) const;
  [[nodiscard]] bool keeps_a_tensor() const;
  /// Returns the first shard that keeps a tensor.
  [[nodiscard]] std::uint32_t first_named() const;
  /// Adds the new index to the transaction of first_named().
  Result<void> begin_index(bool uses_locks);

  const Model* model_;
  // The names and shapes that rows refer to, other than the model's.
  std::deque<std::string> names_;
  std::deque<std::vector<std::uint64_t>> shapes_;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> first_rows_;  // by shard: its rows follow the positions in its version
  RowByName by_name_;                      // names that unchanged() does not find
  std::vector<Metadata> metadata_;         // by shard
  std::vector<bool> is_touched_;           // by shard
  bool is_changed_ = false;
  bool is_index_changed_ = false;
  bool keeps_deleted_ = false;
  bool makes_room_ = false;
  std::map<std::uint32_t, std::shared_ptr<const EditLayout>> layouts_;  // by shard
  std::vector<Changed> changed_;                                        // layouts_
  std::vector<TensorPlace> moved_;
  std::map<std::uint32_t, Transaction> transactions_;  // by shard
};

}  // namespace stfs
