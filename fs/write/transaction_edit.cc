#include "fs/write/transaction_edit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/mutex.h"
#include "core/format/json_string.h"

namespace stfs {
namespace {

using Fate = StagedTensor::Fate;

bool has_form(const Tensor& tensor, const NewTensor::Form& form) {
  return tensor.dtype == form.dtype && std::ranges::equal(tensor.shape, form.shape);
}

}  // namespace

TransactionEdit::TransactionEdit(std::string name, const Snapshots& snapshots, const StagedChanges& staged,
                                 std::function<Result<void>()> check_versions)
    : name_(std::move(name)),
      snapshots_(snapshots),
      staged_(staged),
      check_versions_(std::move(check_versions)) {
  for (const auto& [tensor, entry] : staged.tensors()) {
    if (entry.is_new) new_names_.insert(entry.name);
    if (!entry.content) continue;
    const MutexLock lock(entry.content->mutex);
    if (entry.content->is_dirty()) puts_.push_back({tensor, &entry});
  }
}

Result<void> TransactionEdit::check() const {
  const Model& model = *snapshots_->model;
  const auto conflict = [&](std::string_view name, std::string_view what) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("transaction {}: tensor {} was {} by another program since it was staged", name_,
                            in_quotes(name), what));
  };
  for (const auto& [tensor, entry] : staged_.tensors()) {
    if (!entry.is_new) {
      if (!model.ids().position(tensor)) return conflict(entry.base_name, "deleted or replaced");
      const Tensor now = model.tensor(tensor);
      if (now.name != entry.base_name) return conflict(entry.base_name, "renamed");
      if ((entry.form || entry.new_tensor() != nullptr) && !has_form(now, entry.base_form))
        return conflict(entry.base_name, "given another dtype or shape");
    }
    if (entry.fate != Fate::Stays || !entry.has_other_name()) continue;
    const auto other = model.find(entry.name);
    const StagedTensor* const others = other ? staged_.at(*other) : nullptr;
    const bool is_free =
        !other || (others != nullptr && (others->fate != Fate::Stays || others->has_other_name()));
    if (is_free) continue;
    // The error is not EEXIST, because mv(1) would then name the directory in committed/.
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("transaction {}: another program has made a tensor {} since", name_,
                            in_quotes(entry.name)));
  }
  const Metadata& metadata = model.metadata();
  for (const auto& [key, value] : staged_.metadata()) {
    const bool is_same = metadata.find(key) == value.base;
    if (is_same) continue;
    return fail(
        ErrorCode::ArchiveChanged, ESTALE,
        fmt::format("transaction {}: metadata {} were changed by another program since they were staged",
                    name_, in_quotes(key)));
  }
  return check_versions_();
}

Result<NewTensor::Form> TransactionEdit::form_of(const Put& put) const {
  if (const NewTensor* const made = put.staged->new_tensor()) return made->form();
  if (put.staged->form) return *put.staged->form;
  const Tensor now = snapshots_->model->tensor(put.tensor);
  return NewTensor::Form{.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}};
}

Result<void> TransactionEdit::check_forms() const {
  std::string formless;
  for (const Put& put : puts_) {
    const NewTensor* const made = put.staged->new_tensor();
    const bool is_formless = put.staged->is_new && made != nullptr && !made->has_whole_form();
    if (is_formless) formless += (formless.empty() ? "" : ", ") + in_quotes(put.staged->name);
  }
  if (formless.empty()) return {};
  return fail(ErrorCode::WrongSize, ENODATA,
              fmt::format("transaction {}: these files are no tensors: {}: set their attributes "
                          "user.safetensors.dtype and user.safetensors.shape, or remove them",
                          name_, formless));
}

Result<void> TransactionEdit::apply(ModelEdit& edit) const {
  std::vector<ModelEdit::Renaming> renamings;
  for (const auto& [tensor, entry] : staged_.tensors()) {
    if (entry.is_new) continue;
    if (entry.fate == Fate::Stays) {
      if (entry.has_other_name()) renamings.push_back({entry.base_name, entry.name});
    } else if (!new_names_.contains(entry.base_name)) {
      // If a new tensor has this name, it takes the old tensor's place in its shard.
      RETURN_IF_ERROR(edit.remove(entry.base_name));
    }
  }
  RETURN_IF_ERROR(edit.rename(renamings));
  for (const auto& [tensor, entry] : staged_.tensors()) {
    if (entry.fate != Fate::Stays || !entry.form || entry.new_tensor() != nullptr) continue;
    RETURN_IF_ERROR(edit.reinterpret(entry.name, entry.form->dtype, entry.form->shape));
  }
  RETURN_IF_ERROR(check_forms());
  for (const Put& put : puts_) {
    auto form = form_of(put);
    RETURN_IF_ERROR(form);
    RETURN_IF_ERROR(edit.put(put.staged->name, form->dtype, std::move(form->shape)));
  }
  for (const auto& [key, value] : staged_.metadata()) {
    RETURN_IF_ERROR(edit.set_metadata(key, value.value));
  }
  return {};
}

Result<void> TransactionEdit::fill(ModelEdit& edit, const CopyPatched& copy_patched) const {
  for (const Put& put : puts_) {
    Staging* const stage = edit.stage(put.staged->name);
    if (stage == nullptr) continue;  // it has no bytes
    PendingFile& content = *put.staged->content;
    const ContentLock::Reading reading(content.mutex);
    const NewTensor* const made = put.staged->new_tensor();
    if (made == nullptr) {
      RETURN_IF_ERROR(copy_patched(content, *stage));
      continue;
    }
    auto form = form_of(put);
    RETURN_IF_ERROR(form);
    RETURN_IF_ERROR(made->copy_to(*stage, *form));
  }
  return {};
}

std::vector<TensorId> TransactionEdit::touched() const {
  std::vector<TensorId> touched;
  for (const auto& [tensor, entry] : staged_.tensors()) {
    const bool is_patched =
        entry.new_tensor() == nullptr && entry.fate == Fate::Stays && !entry.has_other_name() && !entry.form;
    if (!entry.is_new && !is_patched) touched.push_back(tensor);
  }
  return touched;
}

std::vector<TensorId> TransactionEdit::replaced() const {
  std::vector<TensorId> replaced;
  for (const auto& [tensor, entry] : staged_.tensors()) {
    if (entry.fate == Fate::Replaced) replaced.push_back(tensor);
  }
  return replaced;
}

}  // namespace stfs
