// A change of a model by the names of its tensors. This class decides how the change is committed:
//
//   in place   only bytes change, and the tensors keep dtype and shape: a transaction (transaction_group.h).
//              Nothing moves, and programs that read the model go on
//   as an edit everything else, and all changes of a model with a delta that concern a tensor of the base:
//              the structure changes (model_edit.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/format/dtype.h"
#include "core/model/model.h"
#include "core/model/model_edit.h"
#include "core/model/transaction_group.h"

namespace stfs {

/// The order of calls: all changes, then begin(), then write() for each tensor of put(), then commit(). Used
/// by one thread. A change that fails changes nothing.
class ModelChange {
 public:
  /// Returns another opening of the model, for an edit. This opening must outlive the change.
  using OpenForEdit = std::function<Result<const Model*>()>;
  /// The model must be opened for writing, and must outlive the change.
  /// @param open_for_edit  is called when the change becomes an edit, which then uses this opening instead of
  ///                       `model`. Null: the edit uses `model`.
  explicit ModelChange(const Model& model, OpenForEdit open_for_edit = nullptr)
      : model_(&model), open_for_edit_(std::move(open_for_edit)) {}

  /// Gives a tensor new bytes, or makes a new tensor. The change becomes an edit unless the model has a
  /// tensor of this name, dtype and shape that is not in the base of a delta.
  Result<void> put(std::string name, Dtype dtype, std::vector<std::uint64_t> shape);
  /// The change becomes an edit, which takes all other changes. Only put() of this class gives bytes.
  /// @return the edit, owned by this change; the errors of ModelEdit::of() and of OpenForEdit.
  Result<ModelEdit*> edit();

  [[nodiscard]] bool is_in_place() const { return !edit_; }
  /// Returns true if commit() would change nothing.
  [[nodiscard]] bool is_empty() const { return edit_ ? edit_->is_empty() : patched_.empty(); }

  // ModelEdit describes these calls. A change in place moves and frees nothing, and needs no plan.
  Result<void> plan(bool uses_locks) { return edit_ ? edit_->plan(uses_locks) : Result<void>(); }
  [[nodiscard]] std::uint64_t freed_bytes() const { return edit_ ? edit_->freed_bytes() : 0; }
  [[nodiscard]] std::uint64_t moved_bytes() const { return edit_ ? edit_->moved_bytes() : 0; }
  [[nodiscard]] std::span<const ModelEdit::Changed> changed() const {
    return edit_ ? edit_->changed() : std::span<const ModelEdit::Changed>();
  }

  Result<void> begin(bool uses_locks);
  /// Returns bytes of the new content from the beginning of `rest`, at least one byte. The span is valid
  /// until the next call.
  using ReadPiece = std::function<Result<std::span<const std::byte>>(ByteRange rest)>;
  /// Stages the whole content of a tensor of put(). The name is the tensor's name after the change. Does
  /// nothing for other tensors.
  Result<void> write(std::string_view name, const ReadPiece& read_piece);
  /// Makes all changes, or none. See TransactionGroup::commit().
  Result<void> commit(const TransactionGroup::OptionsOf& options_of, const TransactionGroup::LockOf& lock_of);

 private:
  /// Returns the tensor's position in the model, if the put() is possible in place.
  [[nodiscard]] std::optional<std::uint32_t> find_alike(std::string_view name, Dtype dtype,
                                                        std::span<const std::uint64_t> shape) const;
  /// Returns the pending content of a tensor of put(). Null for other tensors, and for some tensors without
  /// bytes.
  Result<Staging*> stage(std::string_view name);

  const Model* model_;
  const OpenForEdit open_for_edit_;
  std::set<std::uint32_t> patched_;              // positions; empty once there is an edit
  std::optional<ModelEdit> edit_;                // nothing: in place
  std::optional<TransactionGroup> transaction_;  // in place, after begin()
};

}  // namespace stfs
