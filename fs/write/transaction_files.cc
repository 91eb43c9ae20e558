// Stages edits of the structure in transactions: rm, mv, new files, forms, metadata
// (transaction_directory.h).
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/xattr.h>

#include <algorithm>
#include <utility>

#include "core/base/mutex.h"
#include "core/format/json_string.h"
#include "fs/write/transaction_directory.h"

namespace stfs {
namespace {

tl::unexpected<Error> refuse_file(int errno_value, std::string why) {
  return fail(ErrorCode::InvalidArgument, errno_value, std::move(why));
}

tl::unexpected<Error> has_ended() {
  return fail(ErrorCode::ArchiveChanged, ESTALE, "the transaction has ended");
}

tl::unexpected<Error> no_such_tensor() {
  return fail(ErrorCode::NotFound, ENOENT, "no such tensor");
}

/// Returns a new file without a form, which an editor makes to rename it over another file; null for others.
NewTensor* plain_file(StagedTensor* staged) {
  if (staged == nullptr || !staged->is_new) return nullptr;
  NewTensor* const made = staged->new_tensor();
  return made->has_form() ? nullptr : made;
}

}  // namespace

void TransactionDirectory::drop(const Contents& dropped) {
  for (const auto& content : dropped) {
    const MutexLock lock(content->mutex);
    content->drop();
  }
}

std::optional<Maker> TransactionDirectory::maker(Ino ino) const {
  const MutexLock lock(mutex_);
  const Begun* const begun = begun_at(ino);
  return begun == nullptr ? std::nullopt : std::optional(begun->maker);
}

std::optional<std::string> TransactionDirectory::transaction_name(Ino ino) const {
  const MutexLock lock(mutex_);
  const Begun* const begun = begun_at(ino);
  return begun == nullptr ? std::nullopt : std::optional(begun->name);
}

std::optional<StagedTensor> TransactionDirectory::staged(Ino file) const {
  const MutexLock lock(mutex_);
  const Begun* const begun = begun_at(file);
  const StagedTensor* const staged = begun == nullptr ? nullptr : begun->staged.at(tensor(file));
  return staged == nullptr ? std::nullopt : std::optional(*staged);
}

std::string TransactionDirectory::name(Ino file) const {
  const MutexLock lock(mutex_);
  const Begun* const begun = begun_at(file);
  return begun == nullptr ? std::string(snapshots_->model->tensor(tensor(file)).name)
                          : begun->staged.name(tensor(file));
}

Result<NewTensor::Form> TransactionDirectory::form(Ino file) const {
  const MutexLock lock(mutex_);
  const Begun* const begun = begun_at(file);
  return begun == nullptr ? StagedChanges(snapshots_).form(tensor(file)) : begun->staged.form(tensor(file));
}

Result<TransactionDirectory::Found> TransactionDirectory::find_closed(Ino directory,
                                                                      std::string_view file_name) {
  const auto find = [&]() REQUIRES(mutex_) {
    Found found{.begun = begun_at(directory), .tensor = {}};
    if (found.begun != nullptr) found.tensor = found.begun->staged.find(file_name);
    return found;
  };
  const auto is_closed = [](const Found& found) {
    const StagedTensor* const staged = found.tensor ? found.begun->staged.at(*found.tensor) : nullptr;
    return staged == nullptr || staged->writers == 0;
  };
  wait_for_closes([&]() REQUIRES(mutex_) { return is_closed(find()); });
  const Found found = find();
  if (found.begun == nullptr) return has_ended();
  if (!is_closed(found)) {
    return refuse_file(EBUSY, fmt::format("tensor {} is open for writing",
                                          in_quotes(found.begun->staged.name(*found.tensor))));
  }
  if (found.begun->is_committing) return refuse_file(EBUSY, "the transaction is being committed");
  return found;
}

Result<void> TransactionDirectory::remove_file(Ino directory, std::string_view name,
                                               const Result<void>& editable) {
  if (!is_transaction(directory)) return refuse_file(EPERM, "not a tensor of a transaction");
  Contents dropped;
  {
    const MutexLock lock(mutex_);
    auto found = find_closed(directory, name);
    RETURN_IF_ERROR(found);
    if (!found->tensor) return no_such_tensor();
    StagedChanges& staged = found->begun->staged;
    if (!editable && staged.at(*found->tensor) == nullptr) return editable;
    const bool is_known = staged.at(*found->tensor) != nullptr;
    RETURN_IF_ERROR(is_known ? Result<void>() : check_share(*found->begun));
    staged.remove(*found->tensor, dropped);
  }
  drop(dropped);
  return {};
}

Result<void> TransactionDirectory::rename_file(Ino directory, std::string_view file_name,
                                               std::string_view new_file_name,
                                               const std::optional<std::string>& name, unsigned flags) {
  Contents dropped;
  {
    const MutexLock lock(mutex_);
    auto target = find_closed(directory, new_file_name);
    RETURN_IF_ERROR(target);
    StagedChanges& staged = target->begun->staged;
    const auto tensor = staged.find(file_name);
    if (!tensor) return no_such_tensor();
    if (target->tensor && (flags & RENAME_NOREPLACE) != 0)
      return refuse_file(EEXIST, "there is a tensor of that name");
    if (target->tensor == tensor) return {};
    RETURN_IF_ERROR(check_share(*target->begun));
    if ((flags & RENAME_EXCHANGE) != 0) {
      if (!target->tensor) return no_such_tensor();
      staged.exchange(*tensor, *target->tensor);
      return {};
    }
    if (!target->tensor && !name) return refuse_file(EILSEQ, "no tensor's file can have this name");
    NewTensor* const plain = plain_file(staged.at(*tensor));
    if (target->tensor && plain != nullptr && plain_file(staged.at(*target->tensor)) == nullptr) {
      auto form = staged.form(*target->tensor);
      RETURN_IF_ERROR(form);
      const auto due = data_size_bytes(form->dtype, form->shape);
      if (plain->size_bytes() != due.value_or(plain->size_bytes() + 1)) {
        return refuse_file(
            ENODATA,
            fmt::format("tensor {}: {} has {} bytes, {} {} needs {}: set the dtype or the shape "
                        "of the new file first, to replace the tensor by another one",
                        in_quotes(staged.name(*target->tensor)), in_quotes(staged.name(*tensor)),
                        plain->size_bytes(), name_of(form->dtype), shape_text(form->shape), due.value_or(0)));
      }
      plain->set_dtype(form->dtype);
      plain->set_shape(std::move(form->shape));
    }
    staged.rename(*tensor, new_file_name, name.value_or(""), dropped);
  }
  drop(dropped);
  return {};
}

std::shared_ptr<StagingFile> TransactionDirectory::new_bytes(Ino ino, Archive& beside) {
  const MutexLock lock(mutex_);
  Begun* const begun = begun_at(ino);
  if (begun == nullptr) return std::make_shared<StagingFile>(beside);
  if (!begun->new_bytes) begun->new_bytes = std::make_shared<StagingFile>(beside);
  return begun->new_bytes;
}

Result<TransactionDirectory::Made> TransactionDirectory::create(Ino directory, std::string_view file_name,
                                                                std::string name, TensorId tensor,
                                                                Archive& beside) {
  RETURN_IF_ERROR(check_room(tensor));
  const MutexLock lock(mutex_);
  Begun* const begun = begun_at(directory);
  if (begun == nullptr) return has_ended();
  if (begun->is_committing) return refuse_file(EBUSY, "the transaction is being committed");
  if (begun->staged.find(file_name)) return refuse_file(EEXIST, "there is a tensor of that name");
  RETURN_IF_ERROR(check_share(*begun));
  if (!begun->new_bytes) begun->new_bytes = std::make_shared<StagingFile>(beside);
  auto content =
      std::make_shared<PendingFile>(tensor, std::make_unique<NewTensor>(name, false, begun->new_bytes));
  begun->staged.make(tensor, file_name, std::move(name), content);
  begun->staged.at(tensor)->writers = 1;
  return Made{.ino = file_of(place_of(directory).number, tensor), .content = std::move(content)};
}

void TransactionDirectory::charge(uid_t user) {
  constexpr std::size_t kNoLimit = SIZE_MAX;
  const auto update = [&](Charged& charged, UserCounts& counts, std::size_t amount) {
    if (charged.amount == amount) return;
    charged = {};
    if (amount > 0) charged = {amount, counts.take_within(kNoLimit, user, amount).value_or(nullptr)};
  };
  for (auto& [number, begun] : begun_) {
    if (begun.maker.uid != user) continue;
    update(begun.staged_charge, staged_, begun.staged.count());
    update(begun.text_charge, text_bytes_, begun.staged.text_bytes());
  }
}

Result<void> TransactionDirectory::check_share(const Begun& begun, std::uint64_t text_bytes) {
  const uid_t user = begun.maker.uid;
  charge(user);
  const std::size_t count = staged_.count(user);
  text_bytes += text_bytes_.count(user);
  constexpr std::string_view kAdvice = "commit or remove a transaction";
  if (count >= limits_.staged) {
    return over_user_limit(user, limits_.staged, "staged tensors and keys of metadata in transactions",
                           kAdvice);
  }
  if (text_bytes > limits_.metadata_bytes) {
    return fail(
        ErrorCode::InvalidArgument, EDQUOT,
        fmt::format("user {} would have {} bytes of metadata, names and shapes in transactions, and one user "
                    "may have {}: {}",
                    user, text_bytes, limits_.metadata_bytes, kAdvice));
  }
  return {};
}

Result<void> TransactionDirectory::set_form(Ino file, NewTensor::Form form) {
  const MutexLock lock(mutex_);
  Begun* const begun = begun_at(file);
  if (begun == nullptr) return has_ended();
  if (begun->is_committing) return refuse_file(EBUSY, "the transaction is being committed");
  const TensorId id = tensor(file);
  const StagedTensor* const known = begun->staged.at(id);
  if (known != nullptr ? known->fate != StagedTensor::Fate::Stays : !snapshots_->model->has(id))
    return no_such_tensor();
  RETURN_IF_ERROR(known != nullptr ? Result<void>() : check_share(*begun));
  StagedTensor& staged = begun->staged.stage(id);
  const bool is_base = form.dtype == staged.base_form.dtype && form.shape == staged.base_form.shape;
  staged.form = is_base ? std::nullopt : std::optional(std::move(form));
  begun->staged.tidy(id);
  return {};
}

Result<void> TransactionDirectory::set_metadata(Ino directory, std::string_view key,
                                                const std::optional<std::string>& value, int flags) {
  const MutexLock lock(mutex_);
  Begun* const begun = begun_at(directory);
  if (begun == nullptr) return has_ended();
  if (begun->is_committing) return refuse_file(EBUSY, "the transaction is being committed");
  const bool is_there = begun->staged.metadata(key).has_value();
  if (!is_there && (!value || (flags & XATTR_REPLACE) != 0))
    return fail(ErrorCode::NotFound, ENODATA, "no such attribute");
  if (is_there && value && (flags & XATTR_CREATE) != 0) return refuse_file(EEXIST, "the attribute is there");
  const std::uint64_t more_bytes = key.size() + value.value_or("").size();
  RETURN_IF_ERROR(value ? check_share(*begun, more_bytes) : Result<void>());
  begun->staged.set_metadata(key, value);
  return {};
}

std::optional<std::string> TransactionDirectory::metadata(Ino directory, std::string_view key) const {
  const MutexLock lock(mutex_);
  const Begun* const begun = begun_at(directory);
  return begun == nullptr ? std::nullopt : begun->staged.metadata(key);
}

void TransactionDirectory::visit_metadata(Ino directory, const StagedChanges::VisitKey& visit) const {
  const MutexLock lock(mutex_);
  const Begun* const begun = begun_at(directory);
  if (begun != nullptr) begun->staged.visit_metadata(visit);
}

std::vector<std::string> TransactionDirectory::deleted(Ino directory, std::size_t most_bytes) const {
  std::vector<std::string> names;
  std::size_t name_bytes = 0;
  const MutexLock lock(mutex_);
  const Begun* const begun = begun_at(directory);
  if (begun == nullptr) return names;
  for (const auto& [tensor, staged] : begun->staged.tensors()) {
    if (staged.fate == StagedTensor::Fate::Stays) continue;
    names.push_back(staged.base_name);
    name_bytes += names.back().size() + 1;
    if (name_bytes > most_bytes) break;
  }
  return names;
}

}  // namespace stfs
