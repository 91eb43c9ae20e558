// Finds and stages tensors of a transaction as NumPy files (transaction_directory.h).
//
//   T/.safetensors/npy/NAME.npy   shows each tensor of T, whatever is staged for it. A file that a program
//                                 writes is a draft until its close (drafts.h). The close stages the tensor:
//                                 T/NAME has the bytes behind the NumPy header then
//   the close fails               as in .safetensors/npy. T can't be committed then until NAME.npy or NAME is
//                                 written again, or T/NAME is removed
//   mv T .safetensors/committed   needs that all these files are closed
#include <utility>

#include "core/base/mutex.h"
#include "fs/tree/names.h"
#include "fs/write/transaction_directory.h"

namespace stfs {
namespace {

tl::unexpected<Error> cannot_stage(int errno_value, std::string why) {
  return fail(ErrorCode::ArchiveChanged, errno_value, std::move(why));
}

}  // namespace

bool TransactionDirectory::is_hidden(Ino ino) const {
  return is_in_transaction(ino) && place_of(ino).in_run >= half_;
}

bool TransactionDirectory::is_npy_directory(Ino ino) const {
  return is_in_transaction(ino) && place_of(ino).in_run == run_ - 1;
}

Ino TransactionDirectory::npy_file(Ino ino, TensorId tensor) const {
  return ino_of(place_of(ino).number, half_ + 1 + number_of(tensor));
}

Result<void> TransactionDirectory::check_room(TensorId tensor) const {
  if (half_ + 1 + number_of(tensor) < run_ - 1) return {};
  return cannot_stage(ENOSPC, "this mount has made too many tensors: mount the model again");
}

std::optional<TensorId> TransactionDirectory::find_npy(const Begun& begun, std::string_view name) const {
  const auto stem = without_npy_suffix(name);
  if (!stem) return std::nullopt;
  if (const auto tensor = begun.staged.find(*stem)) return tensor;
  // A tensor of the model may have a name that `.npy` makes too long.
  const Snapshot& shown = *snapshots_;
  const auto tensor = shown.view_names.tensor_of_npy(name);
  if (!tensor) return std::nullopt;
  const bool has_name =
      begun.staged.find(shown.flat().file_name(InodeTable::ino_of_tensor(*tensor))) == *tensor;
  return has_name ? tensor : std::nullopt;
}

Result<TensorVersion> TransactionDirectory::base_of(Ino file) const {
  const auto known = staged(file);
  // version_of_() reads the whole tensor the first time, so no lock is held.
  return known && known->is_new ? Result<TensorVersion>(TensorVersion{}) : version_of_(tensor(file));
}

Result<void> TransactionDirectory::put_npy(Ino file, Npy npy) {
  Contents dropped;
  {
    const MutexLock lock(mutex_);
    Begun* const begun = begun_at(file);
    if (begun == nullptr) return cannot_stage(ESTALE, "the transaction has ended");
    if (begun->is_committing) return cannot_stage(EBUSY, "the transaction is being committed");
    StagedChanges& changes = begun->staged;
    const std::string file_name = file_name_of(npy.name);
    TensorId id = tensor(file);
    const StagedTensor* known = changes.at(id);
    if (known != nullptr && known->fate != StagedTensor::Fate::Stays)
      return cannot_stage(ESTALE, "the tensor was deleted in the transaction");
    if (known == nullptr && !snapshots_->model->has(id)) {
      // The tensor is new in the transaction. Since then another program may have made a tensor of that name.
      if (const auto other = changes.find(file_name)) {
        id = *other;
        known = changes.at(id);
        if (known == nullptr || !known->is_new)
          return cannot_stage(ESTALE, "another program has made a tensor of that name");
      }
    }
    RETURN_IF_ERROR(known != nullptr ? Result<void>() : check_share(*begun));
    const auto content = std::make_shared<PendingFile>(id, std::move(npy.data));
    if (npy.failure) content->fail(std::move(*npy.failure));
    if (known == nullptr && !snapshots_->model->has(id)) {
      changes.make(id, file_name, std::move(npy.name), content);
      return {};
    }
    StagedTensor& staged = changes.stage(id);
    if (staged.content) {
      dropped.push_back(std::move(staged.content));
    } else {
      staged.base = std::move(npy.base);
    }
    staged.content = content;
    staged.form.reset();
  }
  // A program may still have the tensor's own file open.
  for (const auto& content : dropped) {
    const MutexLock lock(content->mutex);
    content->fail({ErrorCode::ArchiveChanged, ESTALE, "a NumPy file has replaced the tensor"});
  }
  return {};
}

}  // namespace stfs
