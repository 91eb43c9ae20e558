#include "fs/write/tensor_patch.h"

#include <fmt/format.h>

#include <cerrno>
#include <mutex>
#include <utility>

#include "core/format/header.h"
#include "core/format/json_string.h"

namespace stfs {

TensorPatch::TensorPatch(const Snapshots& snapshots, TensorId tensor, std::shared_ptr<TransactionGroup> group)
    : tensor_(tensor),
      snapshots_(snapshots),
      tensor_bytes_(snapshots->model->tensor(tensor).data.size_bytes),
      is_grouped_(group != nullptr),
      group_(std::move(group)) {}

std::string TensorPatch::label() const {
  return "tensor " + in_quotes(snapshots_->model->tensor(tensor_).name);
}

Result<Staging*> TensorPatch::stage() {
  if (staged_ != nullptr) return staged_;
  if (!group_)
    group_ = std::make_shared<TransactionGroup>(
        *snapshots_->model, [user = user_] { return take_descriptor(requesting_user(user)); });
  const std::scoped_lock lock(group_->mutex);
  const Model& model = *snapshots_->model;
  staged_place_ = model.place(tensor_);
  auto stage = group_->stage(staged_place_);
  if (stage) staged_ = *stage;
  is_copy_ = staged_ != nullptr && model.is_of_base(staged_place_.shard);
  return stage;
}

Result<void> TensorPatch::write(std::span<const std::byte> from, std::uint64_t offset) {
  auto stage = this->stage();
  return stage ? (*stage)->write(from, offset) : pass_on(std::move(stage));
}

Result<void> TensorPatch::resize(std::uint64_t size_bytes) {
  auto stage = this->stage();
  return stage ? (*stage)->resize(size_bytes) : pass_on(std::move(stage));
}

Result<void> TensorPatch::read(std::span<std::byte> to, std::uint64_t offset,
                               const Staging::ReadBase& read_base) const {
  return staged_ != nullptr ? staged_->read(to, offset, read_base) : read_base(to, offset);
}

Result<void> TensorPatch::check() const {
  if (staged_ == nullptr || staged_->is_whole()) return {};
  const Tensor tensor = snapshots_->model->tensor(tensor_);
  return fail(ErrorCode::WrongSize, EINVAL,
              fmt::format("{} bytes were written, {} {} needs {}", size_bytes(), name_of(tensor.dtype),
                          shape_text(tensor.shape), tensor.data.size_bytes));
}

void TensorPatch::drop() {
  if (is_grouped_ && staged_ != nullptr) {
    const std::scoped_lock lock(group_->mutex);
    group_->drop(staged_place_);
  } else if (!is_grouped_) {
    group_.reset();
  }
  staged_ = parked_ = nullptr;
  is_copy_ = false;
}

Result<Committers::Patch> TensorPatch::complete() const {
  const auto pieces = staged_->pieces();
  RETURN_IF_ERROR(pieces);
  Committers::Patch patch{.place = staged_->target()};
  for (const ByteRange piece : *pieces) patch.size_bytes += piece.size_bytes;
  return patch;
}

Result<void> TensorPatch::commit(ContentLock& lock, const TransactionGroup::OptionsOf& options_of,
                                 const TransactionGroup::LockOf& lock_of) {
  const auto options_with_readers = [&](std::uint32_t shard) {
    auto options = options_of(shard);
    if (options) options->before_stages_end = [&lock] { lock.send_readers_out(); };
    return options;
  };
  return group_->commit(options_with_readers, lock_of);
}

void TensorPatch::park() {
  parked_ = std::exchange(staged_, nullptr);
}

void TensorPatch::unpark() {
  staged_ = std::exchange(parked_, nullptr);
}

}  // namespace stfs
