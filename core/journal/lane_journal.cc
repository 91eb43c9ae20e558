#include "core/journal/lane_journal.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/journal/journal_access.h"
#include "core/journal/journal_file.h"
#include "core/storage/permissions.h"

namespace stfs {

Result<void> LaneJournal::prepare() {
  return guard_memory([&] { return prepare_unguarded(); });
}

Result<void> LaneJournal::prepare_unguarded() {
  if (file_ || lacks_locks_) return {};
  // Asked before the file gets its access: if the archive's mode changes after this call, the next commit
  // sees the change.
  const auto access = strict_status_of(archive_);
  if (!access && !says_gone(access.error())) return tl::unexpected(access.error());
  auto made = create_journal_file(storage_, archive_path_, archive_, kLaneJournalSuffix);
  RETURN_IF_ERROR(made);
  lacks_locks_ = !made->is_locked;
  if (lacks_locks_) return {};
  // Write zeros instead of preallocating: zeroed blocks are overwritten in place, but a first write to a
  // preallocated block changes the file's metadata. Write block by block: the page cache keeps one write in
  // one folio, and syncing a large folio takes a third longer.
  const std::vector<std::byte> zeros(kBlockBytes);
  for (std::uint64_t at = 0; at < kLaneJournalBytes; at += kBlockBytes) {
    RETURN_IF_ERROR(made->file->write(zeros, at));
  }
  RETURN_IF_ERROR(made->file->sync());
  RETURN_IF_ERROR(storage_.publish(*made->file, made->path));
  access_ = access.value_or(FileStatus{});
  path_ = std::move(made->path);
  file_ = std::move(made->file);
  id_ = made->id;
  own_ = made->own;
  if (auto synced = storage_.sync_directory(path_.parent_path()); !synced) {
    take_back();
    return synced;
  }
  is_ready_.store(true, std::memory_order_release);
  return {};
}

Result<void> LaneJournal::follow_access() {
  const auto access = strict_status_of(archive_);
  // The commit has found the archive. If the archive has been deleted since, no program needs the journal.
  if (!access && says_gone(access.error())) return {};
  RETURN_IF_ERROR(access);
  if (access->mode == access_.mode && access->uid == access_.uid && access->gid == access_.gid) return {};
  RETURN_IF_ERROR(give_access(storage_, *file_, *access));
  access_ = *access;
  return file_->sync_all();
}

Result<void> LaneJournal::commit(JournalRecord record, const File& staged, Durability durability) {
  record.id = id_;
  record.own = own_;
  std::uint64_t lane_bytes = 0;
  for (const JournalRange& range : record.ranges) lane_bytes += round_up_to_block(range.archive.size_bytes);
  if (lane_bytes > kLaneBytes) {
    return fail(ErrorCode::InvalidArgument, EINVAL, "the change does not fit into a lane");
  }
  if (auto followed = follow_access(); !followed) {
    take_back();
    return followed;
  }
  // Write one contiguous range: lane 0's bytes and the heads, or the heads and lane 1's bytes.
  const std::uint64_t begin = lane_ == 0 ? kLaneHeads.offset - lane_bytes : kLaneHeads.offset;
  const std::uint64_t heads_at = kLaneHeads.offset - begin;
  std::uint64_t at = lane_ == 0 ? 0 : kLaneHeads.size_bytes;
  std::vector<std::byte> image(lane_bytes + kLaneHeads.size_bytes);
  for (JournalRange& range : record.ranges) {
    const auto place = std::span(image).subspan(at, range.archive.size_bytes);
    RETURN_IF_ERROR(staged.read(place, range.journal_offset));
    range.journal_offset = begin + at;
    at += round_up_to_block(range.archive.size_bytes);
  }
  const auto head = encode_head_with(record);
  RETURN_IF_ERROR(head);
  for (const std::size_t place : {lane_, kLanes + lane_}) {
    std::ranges::copy(std::as_bytes(std::span(*head)), image.data() + heads_at + place * kBlockBytes);
  }

  auto done = write(image, begin, durability);
  if (!done) {
    if (take_back()) return done;
    return fail(ErrorCode::CommitUnknown, EIO,
                done.error().message +
                    "; the journal could not be removed either: the next recovery decides whether the "
                    "change is committed");
  }
  has_record_ = true;
  lane_ = (lane_ + 1) % kLanes;
  return {};
}

Result<void> LaneJournal::settle(Durability durability) {
  if (!has_record_) return {};
  // Without durability=power nothing is synced: other processes see the zeros in the page cache, which is
  // enough.
  auto done = guard_memory([&] {
    const std::string zeros(kLaneHeads.size_bytes, '\0');
    return write(std::as_bytes(std::span(zeros)), kLaneHeads.offset, durability);
  });
  if (!done) {
    // If the record stays, recovery runs before the next commit and finds the archive as the record says.
    take_back();
    return done;
  }
  has_record_ = false;
  return {};
}

Result<void> LaneJournal::retire(Durability durability) {
  if (!file_) return {};
  RETURN_IF_ERROR(settle(durability));
  auto removed = guard_memory([&] { return storage_.remove(path_); });
  give_up();
  return removed;
}

void LaneJournal::give_up() {
  is_ready_ = false;
  has_record_ = false;
  path_.clear();
  file_.reset();
}

Result<void> LaneJournal::write(std::span<const std::byte> bytes, std::uint64_t offset,
                                Durability durability) {
  auto done = file_->write(bytes, offset);
  if (done && durability == Durability::Power) done = file_->sync();
  return done;
}

bool LaneJournal::take_back() {
  const auto done = [](auto&& step) { return guard_memory(step).has_value(); };
  const bool is_void = done([&] { return make_void(*file_, kLaneHeads); });
  const bool is_removed = done([&] { return storage_.remove(path_); });
  const bool is_gone =
      is_removed && done([&] { return storage_.sync_directory(archive_path_.parent_path()); });
  give_up();
  return is_void || is_gone;
}

}  // namespace stfs
