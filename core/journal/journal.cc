#include "core/journal/journal.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/mutex.h"

namespace stfs {
namespace {

constexpr std::size_t kRecordPieceBytes = 256 << 10;

using State = Journal::State;

constexpr std::string_view name_of(State state) {
  switch (state) {
    case State::Staging: return "in staging";
    case State::Sealed: return "sealed";
    case State::Committed: return "committed";
    case State::Gone: return "gone";
    case State::TakenBack: return "taken back";
    case State::GivenUp: return "given up";
  }
  return "unknown";
}

constexpr bool leads_to(State from, State next) {
  switch (next) {
    case State::Staging: return from == State::Staging || from == State::Sealed || from == State::TakenBack;
    case State::Sealed: return from == State::Staging;
    case State::Committed: return from == State::Sealed;
    case State::Gone:
    case State::TakenBack:
    case State::GivenUp: return from == State::Committed;
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<Journal>> Journal::create(Storage& storage, const std::filesystem::path& archive_path,
                                                 const File& archive, Place place) {
  std::unique_ptr<Journal> journal(new Journal(storage, archive_path, archive));
  if (place == Place::Memory) {
    auto memory = std::make_unique<StagingBuffer>();
    journal->memory_ = memory.get();
    journal->file_ = std::move(memory);
  } else
    RETURN_IF_ERROR(journal->move_to_disk());
  return journal;
}

Result<void> Journal::check_step_to(State next) const {
  const bool is_in_lane = lane_journal_ != nullptr && next == State::Staging;
  if (leads_to(state_, next) && !is_in_lane) return {};
  return fail(ErrorCode::System, EIO,
              fmt::format("internal error: a journal cannot change its state from {} to {}", name_of(state_),
                          name_of(next)));
}

Result<void> Journal::move_to_disk() {
  auto made = create_journal_file(storage_, archive_path_, archive_);
  RETURN_IF_ERROR(made);
  if (memory_ != nullptr) {
    RETURN_IF_ERROR(memory_->copy_to(*made->file));
  }
  path_ = std::move(made->path);
  id_ = made->id;
  own_ = made->own;
  memory_ = nullptr;
  file_ = std::move(made->file);
  return {};
}

Result<void> Journal::move_to_new_file() {
  writeback_.finish();
  auto made = create_journal_file(storage_, archive_path_, archive_);
  RETURN_IF_ERROR(made);
  const ByteRange regions = {kBlockBytes, end_bytes_ - kBlockBytes};
  RETURN_IF_ERROR(made->file->copy_from(*file_, regions.offset, regions));
  path_ = std::move(made->path);
  id_ = made->id;
  own_ = made->own;
  file_ = std::move(made->file);
  return {};
}

Result<void> Journal::write(std::span<const std::byte> from, std::uint64_t offset) {
  const MutexLock lock(mutex_);
  if (memory_ != nullptr && memory_->blocks_with({offset, from.size()}) > kLaneBlocks) {
    RETURN_IF_ERROR(move_to_disk());
  }
  auto written = file_->write(from, offset);
  // Start writeback while the rest still arrives: the commit waits for these bytes.
  if (written && memory_ == nullptr) writeback_.follow(*file_, {offset, from.size()});
  return written;
}

Result<void> Journal::read(std::span<std::byte> to, std::uint64_t offset) const {
  const MutexLock lock(mutex_);
  return file_->read(to, offset);
}

Result<void> Journal::reserve(ByteRange range) {
  const MutexLock lock(mutex_);
  if (memory_ != nullptr && memory_->blocks_with(range) > kLaneBlocks) {
    RETURN_IF_ERROR(move_to_disk());
  }
  return file_->reserve(range);
}

std::unique_ptr<File> Journal::take_file() {
  writeback_.finish();
  return std::move(file_);
}

std::uint64_t Journal::allocate(std::uint64_t size_bytes) {
  // This alignment lets large writes fill the largest folios of the page cache.
  constexpr std::uint64_t kLargeBytes = 2 << 20;
  const std::uint64_t alignment = size_bytes >= kLargeBytes ? kLargeBytes : kBlockBytes;
  const MutexLock lock(mutex_);
  const std::uint64_t begin = (end_bytes_ + alignment - 1) / alignment * alignment;
  end_bytes_ = begin + round_up_to_block(size_bytes);
  return begin;
}

Result<std::optional<std::uint64_t>> Journal::share(File& archive, ByteRange blocks) {
  const std::uint64_t end_before = end_bytes_;
  const std::uint64_t region = allocate(blocks.size_bytes);
  auto shared = file_->clone_from(archive, blocks.offset, {region, blocks.size_bytes});
  // The commit later clones new blocks over these, which must first evict the old blocks' cached pages.
  if (shared) writeback_.evict(archive, blocks);
  if (shared) return region;
  end_bytes_ = end_before;
  const int why = shared.error().errno_value;
  if (why == EOPNOTSUPP || why == ENOSPC || why == EDQUOT) return std::nullopt;
  return pass_on(std::move(shared));
}

Result<void> Journal::seal(JournalRecord record, Durability durability, const HashRange& hash,
                           LaneJournal* lane_journal, const AroundSync& around_sync) {
  if (spoiled_) return tl::unexpected(*spoiled_);
  RETURN_IF_ERROR(check_step_to(State::Staging));
  if (state_ == State::TakenBack) {
    RETURN_IF_ERROR(move_to_new_file());
  }
  state_ = State::Staging;
  record.owner_pid = ::getpid();
  record.boot = durability == Durability::Process ? storage_.boot() : Boot{};
  if (memory_ != nullptr && lane_journal != nullptr && lane_journal->is_ready() &&
      record.group_record.empty()) {
    for (JournalRange& range : record.ranges) {
      if (auto hashed = hash ? hash(range) : Result<void>{}; !hashed) return hashed;
    }
    path_ = lane_journal->path();
    RETURN_IF_ERROR(lane_journal->commit(std::move(record), *file_, durability));
    lane_journal_ = lane_journal;
    state_ = State::Sealed;
    return {};
  }
  if (memory_ != nullptr) {
    const MutexLock lock(mutex_);  // another thread may be reading the staged bytes
    RETURN_IF_ERROR(move_to_disk());
  }
  // Recovery must not apply this process's earlier commit over the new one.
  if (lane_journal != nullptr) {
    RETURN_IF_ERROR(lane_journal->settle(durability));
  }
  record.id = id_;
  const auto head = write_record(std::move(record), hash);
  RETURN_IF_ERROR(head);
  const std::string block = encode_head(*head);
  RETURN_IF_ERROR(file_->write(std::as_bytes(std::span(block)), 0));
  if (durability == Durability::Process) {
    state_ = State::Sealed;
    return {};
  }
  const auto sync = [this] { return file_->sync(); };
  auto synced = around_sync ? around_sync(sync) : sync();
  if (synced) {
    state_ = State::Sealed;
    return {};
  }
  // Mark the journal as spoiled first: copying the message may run out of memory.
  Error& why = spoiled_.emplace();
  why.code = synced.error().code;
  why.errno_value = synced.error().errno_value;
  why.message = synced.error().message;
  return synced;
}

Result<JournalHead> Journal::write_record(JournalRecord record, const HashRange& hash) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hashing(XXH3_createState(),
                                                                                &XXH3_freeState);
  if (!hashing) throw std::bad_alloc();
  XXH3_64bits_reset(hashing.get());
  std::uint64_t end = end_bytes_;
  const Boot boot = record.boot;
  std::string text = encode_beginning(record);
  const auto write_out = [&]() -> Result<void> {
    XXH3_64bits_update(hashing.get(), text.data(), text.size());
    auto written = file_->write(std::as_bytes(std::span(text)), end);
    end += text.size();
    text.clear();
    return written;
  };
  for (JournalRange& range : record.ranges) {
    if (auto hashed = hash ? hash(range) : Result<void>{}; !hashed) return pass_on(std::move(hashed));
    text += encode_range(range);
    range.new_hashes = range.old_hashes = {};
    if (text.size() < kRecordPieceBytes) continue;
    RETURN_IF_ERROR(write_out());
  }
  RETURN_IF_ERROR(write_out());
  return JournalHead{.id = id_,
                     .record = {end_bytes_, end - end_bytes_},
                     .record_hash = XXH3_64bits_digest(hashing.get()),
                     .boot = boot,
                     .own = own_};
}

Result<void> Journal::publish(Durability durability) {
  if (spoiled_) return tl::unexpected(*spoiled_);
  RETURN_IF_ERROR(check_step_to(State::Committed));
  if (lane_journal_ != nullptr) {
    state_ = State::Committed;
    return {};
  }
  writeback_.finish();
  // Allocate before publishing: a named journal must not fail for lack of memory.
  const std::filesystem::path directory = path_.parent_path();
  auto done = storage_.publish(*file_, path_);
  const bool is_named = done.has_value();
  if (done && durability == Durability::Power) done = storage_.sync_directory(directory);
  if (done) {
    state_ = State::Committed;
    return done;
  }
  spoiled_ = done.error();
  if (!is_named) return done;
  // A crash may keep or lose the name now. Make the content invalid as well, so that a surviving name is no
  // commit.
  const bool is_void = make_void(*file_, kHead).has_value();
  const bool is_removed = storage_.remove(path_).has_value();
  if (is_void || (is_removed && storage_.sync_directory(directory))) return done;
  return fail(ErrorCode::CommitUnknown, EIO,
              done.error().message +
                  "; the journal could not be removed either: the next recovery decides "
                  "whether the change is committed");
}

std::unique_ptr<File> Journal::give_up() {
  if (!leads_to(state_, State::GivenUp)) return nullptr;
  state_ = State::GivenUp;
  if (lane_journal_ != nullptr) {
    lane_journal_->give_up();
  } else {
    file_->unlock(kOwnerByte);
  }
  return std::move(file_);
}

void Journal::take_back(Durability durability) {
  if (!leads_to(state_, State::TakenBack)) return;
  state_ = State::TakenBack;
  // Success is not required: without its group record the journal is not committed, and recovery removes it.
  static_cast<void>(guard_memory([&] { return end(durability); }));
}

Result<void> Journal::retire(Durability durability) {
  RETURN_IF_ERROR(check_step_to(State::Gone));
  auto ended = end(durability);
  if (ended) state_ = State::Gone;
  return ended;
}

Result<void> Journal::end(Durability durability) {
  // A lane journal's owner settles it later (lane_journal.h, invariant 4).
  if (lane_journal_ != nullptr) return {};
  // Even with durability=process: another user may have given the journal another name for a while.
  RETURN_IF_ERROR(make_void(*file_, kHead, durability));
  return storage_.remove(path_);
}

}  // namespace stfs
