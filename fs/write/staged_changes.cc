// Keeps an entry for each tensor that a transaction has touched, and finds tensors by their names in the
// transaction.
#include "fs/write/staged_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/storage/attribute_names.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

std::optional<std::string> value_of(const Metadata& metadata, std::string_view key) {
  const auto value = metadata.find(key);
  return value ? std::optional<std::string>(*value) : std::nullopt;
}

NewTensor::Form form_of(const Tensor& tensor) {
  return {.dtype = tensor.dtype, .shape = {tensor.shape.begin(), tensor.shape.end()}};
}

}  // namespace

const StagedTensor* StagedChanges::at(TensorId tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? nullptr : &found->second;
}

StagedTensor* StagedChanges::at(TensorId tensor) {
  return const_cast<StagedTensor*>(std::as_const(*this).at(tensor));
}

std::string StagedChanges::base_file_name(TensorId tensor) const {
  const InodeTable& flat = (*snapshots_)->flat();
  const Ino ino = InodeTable::ino_of_tensor(tensor);
  return flat.exists(ino) ? std::string(flat.file_name(ino)) : file_name_of(model().tensor(tensor).name);
}

std::string StagedChanges::file_name(TensorId tensor) const {
  const StagedTensor* const staged = at(tensor);
  return staged != nullptr && staged->has_other_name() ? staged->file_name : base_file_name(tensor);
}

std::optional<TensorId> StagedChanges::find(std::string_view file_name) const {
  if (const auto named = by_file_name_.find(file_name); named != by_file_name_.end()) return named->second;
  if (const auto ino = (*snapshots_)->flat().find(kRootIno, file_name)) {
    const TensorId tensor = InodeTable::tensor(*ino);
    const StagedTensor* const staged = at(tensor);
    const bool has_name =
        staged == nullptr || (staged->fate == StagedTensor::Fate::Stays && !staged->has_other_name());
    return has_name ? std::optional(tensor) : std::nullopt;
  }
  // A tensor that is staged and was then deleted from the model.
  for (const auto& [tensor, staged] : tensors_) {
    const bool is_lost = staged.is_listed() && !staged.has_other_name() && !model().ids().position(tensor);
    if (is_lost && base_file_name(tensor) == file_name) return tensor;
  }
  return std::nullopt;
}

std::string StagedChanges::name(TensorId tensor) const {
  const StagedTensor* const staged = at(tensor);
  return staged != nullptr && staged->has_other_name() ? staged->name
                                                       : std::string(model().tensor(tensor).name);
}

Result<NewTensor::Form> StagedChanges::form(TensorId tensor) const {
  const StagedTensor* const staged = at(tensor);
  if (staged != nullptr && staged->new_tensor() != nullptr) return staged->new_tensor()->form();
  if (staged != nullptr && staged->form) return *staged->form;
  const Tensor& now = model().tensor(tensor);
  if (now.shape.size() > kMostDimensionsInAttribute)
    return fail(ErrorCode::InvalidArgument, E2BIG,
                fmt::format("the tensor has {} dimensions, which no attribute can show", now.shape.size()));
  return form_of(now);
}

bool StagedChanges::has_npy(TensorId tensor) const {
  const StagedTensor* const staged = at(tensor);
  if (staged != nullptr && (staged->new_tensor() != nullptr || staged->form)) return true;
  return ViewNames::has_npy(model().tensor(tensor));
}

bool StagedChanges::has_structure() const {
  return !metadata_.empty() || std::ranges::any_of(tensors_, [](const auto& entry) {
    const StagedTensor& staged = entry.second;
    return staged.fate != StagedTensor::Fate::Stays || staged.has_other_name() || staged.form ||
           staged.new_tensor() != nullptr;
  });
}

StagedTensor& StagedChanges::stage(TensorId tensor) {
  const auto [entry, is_added] = tensors_.try_emplace(tensor);
  if (is_added) {
    const Tensor now = model().tensor(tensor);
    entry->second.name = entry->second.base_name = now.name;
    entry->second.base_form = form_of(now);
    text_bytes_ += text_bytes(entry->second);
  }
  return entry->second;
}

void StagedChanges::adopt_form(const StagedTensor& made) const {
  NewTensor* const file = made.is_new ? made.new_tensor() : nullptr;
  if (file == nullptr || file->has_form()) return;
  for (const auto& [tensor, staged] : tensors_) {
    const bool had_name =
        staged.fate != StagedTensor::Fate::Stays && !staged.is_new && staged.base_name == made.name;
    if (had_name && data_size_bytes(staged.base_form.dtype, staged.base_form.shape) == file->size_bytes())
      file->adopt(staged.base_form);
  }
}

void StagedChanges::erase(TensorId tensor) {
  const auto entry = tensors_.find(tensor);
  if (entry == tensors_.end()) return;
  text_bytes_ -= text_bytes(entry->second);
  tensors_.erase(entry);
}

void StagedChanges::tidy(TensorId tensor) {
  const StagedTensor* const staged = at(tensor);
  if (staged != nullptr && staged->fate == StagedTensor::Fate::Stays && !staged->is_listed()) erase(tensor);
}

void StagedChanges::make(TensorId tensor, std::string_view file_name, std::string name,
                         std::shared_ptr<PendingFile> content) {
  StagedTensor& staged = tensors_[tensor];
  staged.is_new = true;
  staged.content = std::move(content);
  take_name(tensor, file_name, std::move(name));
}

void StagedChanges::remove(TensorId tensor, Contents& dropped) {
  StagedTensor& staged = stage(tensor);
  if (!staged.is_listed()) {
    staged.fate = StagedTensor::Fate::Removed;
    return;
  }
  if (staged.content) dropped.push_back(std::exchange(staged.content, nullptr));
  if (staged.replaces) erase(*std::exchange(staged.replaces, std::nullopt));
  leave_name(staged);
  const bool is_new = staged.is_new;
  erase(tensor);
  if (is_new) return;
  const auto other = by_file_name_.find(base_file_name(tensor));
  if (other == by_file_name_.end()) return;
  stage(tensor).fate = StagedTensor::Fate::Replaced;
  tensors_.at(other->second).replaces = tensor;
}

void StagedChanges::leave_name(StagedTensor& tensor) {
  if (tensor.has_other_name()) by_file_name_.erase(tensor.file_name);
  // The tensor that it had replaced under this name stays deleted.
  if (tensor.replaces) tensors_.at(*tensor.replaces).fate = StagedTensor::Fate::Removed;
  tensor.replaces.reset();
}

std::optional<TensorId> StagedChanges::displace(TensorId tensor, Contents& dropped) {
  StagedTensor& staged = stage(tensor);
  if (staged.content) dropped.push_back(std::exchange(staged.content, nullptr));
  staged.form.reset();
  if (!staged.has_other_name()) {
    staged.fate = StagedTensor::Fate::Replaced;
    return tensor;
  }
  const auto replaced = std::exchange(staged.replaces, std::nullopt);
  leave_name(staged);
  staged.name = staged.base_name;
  staged.fate = StagedTensor::Fate::Removed;
  if (staged.is_new) erase(tensor);
  return replaced;
}

void StagedChanges::take_name(TensorId tensor, std::string_view file_name, std::string name) {
  StagedTensor& staged = tensors_.at(tensor);
  staged.name = std::move(name);
  if (!staged.has_other_name()) return;
  staged.file_name = file_name;
  by_file_name_[staged.file_name] = tensor;
}

void StagedChanges::rename(TensorId tensor, std::string_view file_name, std::string name, Contents& dropped) {
  std::optional<TensorId> replaces;
  if (const auto target = find(file_name)) {
    name = this->name(*target);
    replaces = displace(*target, dropped);
  }
  StagedTensor& staged = stage(tensor);
  leave_name(staged);
  take_name(tensor, file_name, std::move(name));
  staged.replaces = replaces;
  tidy(tensor);
}

void StagedChanges::exchange(TensorId one, TensorId other) {
  const std::string name_of_one = name(one);
  const std::string file_of_one = file_name(one);
  const std::string name_of_other = name(other);
  const std::string file_of_other = file_name(other);
  leave_name(stage(one));
  leave_name(stage(other));
  take_name(one, file_of_other, name_of_other);
  take_name(other, file_of_one, name_of_one);
  tidy(one);
  tidy(other);
}

void StagedChanges::set_metadata(std::string_view key, const std::optional<std::string>& value) {
  auto entry = metadata_.find(key);
  if (entry == metadata_.end()) {
    entry = metadata_.emplace(key, StagedValue{.base = value_of(model().metadata(), key), .value = {}}).first;
    text_bytes_ += text_bytes(key, entry->second);
  }
  text_bytes_ -= text_bytes(key, entry->second);
  entry->second.value = value;
  text_bytes_ += text_bytes(key, entry->second);
  if (entry->second.base != value) return;
  text_bytes_ -= text_bytes(key, entry->second);
  metadata_.erase(entry);
}

std::optional<std::string> StagedChanges::metadata(std::string_view key) const {
  const auto staged = metadata_.find(key);
  return staged != metadata_.end() ? staged->second.value : value_of(model().metadata(), key);
}

void StagedChanges::visit_metadata(const VisitKey& visit) const {
  for (const auto& [key, staged] : metadata_) {
    if (staged.value && !visit(key, staged.value->size())) return;
  }
  for (const auto& [key, value] : model().metadata()) {
    if (!metadata_.contains(key) && !visit(key, value.size())) return;
  }
}

}  // namespace stfs
