// Seal, publish, retire.
#include "core/journal.h"

#include <unistd.h>
#include <xxhash.h>

#include <string>
#include <utility>

#include "core/journal_scan.h"

namespace stfs {
Result<std::unique_ptr<Journal>> Journal::create(Storage& storage,
                                                 const std::filesystem::path& archive_path) {
  // On a file system without unnamed files somebody's recovery may take the new file, before its lock, for
  // a dead owner's leftover; then it is gone and another one is made.
  constexpr int kAttempts = 8;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::unique_ptr<Journal> journal(new Journal());
    journal->storage_ = &storage;
    journal->id_ = JournalId::random();
    const std::string name = journal_prefix(archive_path.filename().string()) + journal->id_.text();
    journal->path_ = archive_path.parent_path() / name;
    const std::filesystem::path staged_path =
        archive_path.parent_path() / (name + std::string(kStagedSuffix));
    auto file = storage.create_unnamed(staged_path);
    if (!file) return pass_on(std::move(file));
    journal->file_ = std::move(*file);
    auto conflict = journal->file_->try_lock(kOwnerByte, LockKind::Exclusive);
    if (!conflict && !lacks_locks(conflict.error())) return pass_on(std::move(conflict));
    if (conflict && *conflict) continue;
    if (!journal->file_->has_staged_name() || storage.status(staged_path)) return journal;
  }
  return fail(ErrorCode::Busy, EBUSY,
              archive_path.string() + ": its journals vanish as soon as they are made");
}

std::uint64_t Journal::allocate(std::uint64_t size_bytes) {
  return std::exchange(end_bytes_, end_bytes_ + round_up_to_block(size_bytes));
}

Result<void> Journal::seal(JournalRecord record, Durability durability) {
  if (spoiled_) return tl::unexpected(*spoiled_);
  record.id = id_;
  record.owner_pid = ::getpid();
  const std::string bytes = encode_record(record);
  const JournalHead head{.id = id_,
                         .record = {end_bytes_, bytes.size()},
                         .record_hash = XXH3_64bits(bytes.data(), bytes.size())};
  if (auto written = file_->write(std::as_bytes(std::span(bytes)), end_bytes_); !written) return written;
  const std::string block = encode_head(head);
  if (auto written = file_->write(std::as_bytes(std::span(block)), 0); !written) return written;
  if (durability == Durability::Process) return {};
  auto synced = file_->sync();
  if (!synced) spoiled_ = synced.error();
  return synced;
}

Result<void> Journal::publish(Durability durability) {
  if (spoiled_) return tl::unexpected(*spoiled_);
  auto done = storage_->publish(*file_, path_);
  const bool is_named = done.has_value();
  const std::filesystem::path directory = path_.parent_path();
  if (done && durability == Durability::Power) done = storage_->sync_directory(directory);
  if (done) return done;
  spoiled_ = done.error();
  if (!is_named) return done;
  // Nobody can say whether the name would survive a crash now. Make the content invalid as well, so that
  // whatever survives is no commit.
  const std::string nothing(kBlockBytes, '\0');
  const bool is_void = file_->write(std::as_bytes(std::span(nothing)), 0) && file_->sync();
  const bool is_removed = storage_->remove(path_).has_value();
  if (is_void || (is_removed && storage_->sync_directory(directory))) return done;
  return fail(ErrorCode::CommitUnknown, EIO,
              done.error().message +
                  "; the journal could not be taken back either: whether the change is "
                  "committed shows at the next recovery");
}

std::unique_ptr<File> Journal::give_up() {
  file_->unlock(kOwnerByte);
  return std::move(file_);
}

Result<void> Journal::retire() {
  return storage_->remove(path_);
}

}  // namespace stfs
