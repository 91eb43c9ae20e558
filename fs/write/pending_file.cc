#include "fs/write/pending_file.h"

#include <utility>

namespace stfs {

Result<Staging*> PendingFile::stage() {
  if (staged_ != nullptr) return staged_;
  if (!group_)
    group_ = std::make_shared<TransactionGroup>(
        *model_, [user = user_] { return take_descriptor(requesting_user(user)); });
  const std::scoped_lock lock(group_->mutex);
  const Model& model = *model_;
  staged_place_ = model.place(tensor_);
  auto stage = group_->stage(staged_place_);
  if (stage) staged_ = *stage;
  is_copy_ = staged_ != nullptr && model.is_of_base(staged_place_.shard);
  has_stage_ = staged_ != nullptr;
  return stage;
}

void PendingFile::remake(std::unique_ptr<PendingBytes> made) {
  forget();
  owned_ = std::move(made);
  made_ = owned_.get();
}

Result<void> PendingFile::write(std::span<const std::byte> from, std::uint64_t offset) {
  if (made()) {
    has_stage_ = true;
    return made()->write(from, offset);
  }
  auto stage = this->stage();
  return stage ? (*stage)->write(from, offset) : pass_on(std::move(stage));
}

Result<void> PendingFile::resize(std::uint64_t size_bytes) {
  if (made()) {
    has_stage_ = true;
    return made()->resize(size_bytes);
  }
  auto stage = this->stage();
  return stage ? (*stage)->resize(size_bytes) : pass_on(std::move(stage));
}

Result<void> PendingFile::read(std::span<std::byte> to, std::uint64_t offset,
                               const Staging::ReadBase& read_base) {
  if (made()) return made()->read(to, offset);
  return staged_ != nullptr ? staged_->read(to, offset, read_base) : read_base(to, offset);
}

Result<Committers::Patch> PendingFile::complete() {
  const auto pieces = staged_->pieces();
  RETURN_IF_ERROR(pieces);
  Committers::Patch patch{.place = staged_->target()};
  for (const ByteRange piece : *pieces) patch.size_bytes += piece.size_bytes;
  return patch;
}

Result<void> PendingFile::commit(const TransactionGroup::OptionsOf& options_of,
                                 const TransactionGroup::LockOf& lock_of) {
  const auto options_with_readers = [&](std::uint32_t shard) {
    auto options = options_of(shard);
    if (options) options->before_stages_end = [this] { mutex.send_readers_out(); };
    return options;
  };
  return group_->commit(options_with_readers, lock_of);
}

void PendingFile::end_commit(const Result<void>& done) {
  if (done) {
    forget();
  } else if (group_->is_empty()) {
    end(done.error());  // committed, but not yet applied: the bytes are in the journal
  }
}

void PendingFile::park() {
  parked_ = std::exchange(staged_, nullptr);
  show_size();
}

void PendingFile::unpark() {
  staged_ = std::exchange(parked_, nullptr);
  show_size();
}

void PendingFile::forget() {
  if (made()) made()->forget();
  if (is_grouped_ && staged_ != nullptr) {
    const std::scoped_lock lock(group_->mutex);
    group_->drop(staged_place_);
  } else if (!is_grouped_) {
    group_.reset();
  }
  staged_ = nullptr;
  is_copy_ = false;
  has_stage_ = false;
  was_refused = false;
  show_size();
  writers.clear();
}

void PendingFile::note_failure(Error why) {
  failure = std::move(why);
  has_failed = true;
}

void PendingFile::fail(Error why) {
  forget();
  note_failure(std::move(why));
}

void PendingFile::end(Error why) {
  staged_ = parked_ = nullptr;
  fail(std::move(why));
}

void PendingFile::retry() {
  failure.reset();
  has_failed = false;
}

void PendingFile::note_committed() {
  made()->note_committed();
  has_stage_ = false;
  writers.clear();
  was_refused = false;
}

void PendingFile::note_write(Caller caller) {
  writers.note(caller);
  was_refused = false;
  keeps_mtime = false;
}

}  // namespace stfs
