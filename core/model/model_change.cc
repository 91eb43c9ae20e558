#include "core/model/model_change.h"

#include <algorithm>
#include <utility>

namespace stfs {

std::optional<std::uint32_t> ModelChange::find_alike(std::string_view name, Dtype dtype,
                                                     std::span<const std::uint64_t> shape) const {
  const auto at = model_->tensors().find(name);
  if (!at || model_->is_of_base(model_->place(*at).shard)) return std::nullopt;
  const Tensor tensor = model_->tensors()[*at];
  return tensor.dtype == dtype && std::ranges::equal(tensor.shape, shape) ? at : std::nullopt;
}

Result<void> ModelChange::put(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
  return guard_memory([&]() -> Result<void> {
    if (!edit_) {
      if (const auto at = find_alike(name, dtype, shape)) {
        patched_.insert(*at);
        return {};
      }
    }
    auto changed = edit();
    return changed ? (*changed)->put(std::move(name), dtype, std::move(shape)) : pass_on(std::move(changed));
  });
}

Result<ModelEdit*> ModelChange::edit() {
  return guard_memory([&]() -> Result<ModelEdit*> {
    if (edit_) return &*edit_;
    const auto opened = open_for_edit_ ? open_for_edit_() : Result<const Model*>(model_);
    RETURN_IF_ERROR(opened);
    auto edit = ModelEdit::of(**opened);
    RETURN_IF_ERROR(edit);
    for (const std::uint32_t at : patched_) {
      const Tensor tensor = model_->tensors()[at];
      auto put =
          edit->put(std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()});
      RETURN_IF_ERROR(put);
    }
    edit_.emplace(std::move(*edit));
    model_ = *opened;
    patched_.clear();
    return &*edit_;
  });
}

Result<void> ModelChange::begin(bool uses_locks) {
  if (edit_) return edit_->begin(uses_locks);
  return guard_memory([&]() -> Result<void> {
    transaction_.emplace(*model_);
    return {};
  });
}

Result<Staging*> ModelChange::stage(std::string_view name) {
  if (edit_) return edit_->stage(name);
  const auto at = model_->tensors().find(name);
  if (!at || !patched_.contains(*at)) return nullptr;
  return transaction_->stage(model_->place(*at));
}

Result<void> ModelChange::write(std::string_view name, const ReadPiece& read_piece) {
  const auto found = stage(name);
  RETURN_IF_ERROR(found);
  if (*found == nullptr) return {};
  Staging& staging = **found;
  // Reserve the space for the whole new content, so that a lack of space is reported now.
  RETURN_IF_ERROR(staging.resize(0));
  const std::uint64_t size_bytes = staging.target().size_bytes;
  for (std::uint64_t offset = 0; offset < size_bytes;) {
    const auto piece = read_piece({offset, size_bytes - offset});
    RETURN_IF_ERROR(piece);
    RETURN_IF_ERROR(staging.write(*piece, offset));
    offset += piece->size();
  }
  return {};
}

Result<void> ModelChange::commit(const TransactionGroup::OptionsOf& options_of,
                                 const TransactionGroup::LockOf& lock_of) {
  return edit_ ? edit_->commit(options_of, lock_of) : transaction_->commit(options_of, lock_of);
}

}  // namespace stfs
