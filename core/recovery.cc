// Classify each journal, then do what its state asks for.
#include "core/recovery.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>

#include "core/file_lock.h"
#include "core/header.h"
#include "core/journal_apply.h"

namespace stfs {
namespace {

constexpr ByteRange kOwnerByte = {0, 1};  // core/journal.cc
constexpr std::chrono::seconds kLockPatience{10};
constexpr std::size_t kIdDigits = 32;

/// A journal found beside the archive, as far as it could be understood.
struct Found {
  JournalReport report;
  std::unique_ptr<File> file;
  JournalRecord record;
};

bool is_hexadecimal(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Result<std::string> read_text(const File& file, ByteRange range) {
  std::string text(static_cast<std::size_t>(range.size_bytes), '\0');
  if (auto read = file.read(std::as_writable_bytes(std::span(text)), range.offset); !read) {
    return pass_on(std::move(read));
  }
  return text;
}

/// Reads head, record and new blocks, and believes none of them before their hashes agree.
Result<JournalRecord> read_record(const File& file, std::uint64_t size_bytes) {
  auto block = read_text(file, {0, kBlockBytes});
  if (!block) return pass_on(std::move(block));
  auto head = decode_head(*block);
  if (!head) return pass_on(std::move(head));
  const auto range = ByteRange::checked(head->record.offset, head->record.size_bytes);
  if (!range || range->end() > size_bytes) {
    return fail(ErrorCode::InvalidArgument, EINVAL, "damaged: it ends before its record does");
  }
  auto text = read_text(file, *range);
  if (!text) return pass_on(std::move(text));
  if (XXH3_64bits(text->data(), text->size()) != head->record_hash) {
    return fail(ErrorCode::InvalidArgument, EINVAL, "damaged: its record's hash does not agree");
  }
  auto record = decode_record(*text, size_bytes);
  if (record && record->id != head->id) {
    return fail(ErrorCode::InvalidArgument, EINVAL, "damaged: head and record are of different journals");
  }
  return record;
}

Result<void> check_new_blocks(const File& file, const JournalRecord& record) {
  for (const JournalRange& range : record.ranges) {
    auto hashes = hash_blocks(file, {range.journal_offset, range.archive.size_bytes});
    if (!hashes) return pass_on(std::move(hashes));
    if (*hashes != range.new_hashes) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  "damaged: the hash of a block of new bytes does not agree");
    }
  }
  return {};
}

/// Every block of the archive is the old one or the new one: applying can't destroy anything else.
Result<bool> only_knows_its_blocks(const File& archive, const JournalRecord& record) {
  auto status = archive.status();
  if (!status) return pass_on(std::move(status));
  for (const JournalRange& range : record.ranges) {
    if (range.archive.end() > status->identity.size_bytes) return false;
    auto hashes = hash_blocks(archive, range.archive);
    if (!hashes) return pass_on(std::move(hashes));
    for (std::size_t block = 0; block < hashes->size(); ++block) {
      if ((*hashes)[block] != range.old_hashes[block] && (*hashes)[block] != range.new_hashes[block])
        return false;
    }
  }
  return true;
}

bool is_void(const File& file) {
  const auto block = read_text(file, {0, kBlockBytes});
  return block && block->find_first_not_of('\0') == std::string::npos;
}

class Scan {
 public:
  Scan(Storage& storage, const std::filesystem::path& archive_path, const File& archive)
      : storage_(storage), archive_path_(archive_path), archive_(archive) {}

  Result<std::vector<Found>> all() {
    const std::string prefix = journal_prefix(archive_path_.filename().string());
    auto names = storage_.list(archive_path_.parent_path(), prefix);
    if (!names) return pass_on(std::move(names));
    std::vector<Found> found;
    if (names->empty()) return found;
    std::ranges::sort(*names);
    auto stamp = stamp_of(archive_);
    if (!stamp) return pass_on(std::move(stamp));
    auto status = archive_.status();
    if (!status) return pass_on(std::move(status));
    for (const std::string& name : *names) {
      if (auto journal = look_at(name, name.substr(prefix.size()), *stamp, status->uid)) {
        found.push_back(std::move(*journal));
      }
    }
    std::ranges::stable_sort(found, {}, [](const Found& journal) { return journal.record.sequence; });
    return found;
  }

 private:
  /// Nothing where the journal has gone in the meantime: its owner has retired it.
  std::optional<Found> look_at(const std::string& name, std::string_view rest, const ArchiveStamp& stamp,
                               std::uint32_t archive_uid) {
    Found found;
    found.report.path = archive_path_.parent_path() / name;
    const auto is = [&found](JournalState state, std::string why) {
      found.report.state = state;
      found.report.explanation = std::move(why);
      return std::optional(std::move(found));
    };
    const bool is_staged = rest.ends_with(kStagedSuffix);
    if (is_staged) rest.remove_suffix(kStagedSuffix.size());
    if (rest.size() != kIdDigits || !is_hexadecimal(rest))
      return is(JournalState::Unknown, "not a journal's name");

    auto file = storage_.open_no_link(found.report.path, Access::ReadWrite);
    // A descriptor that may only read can take a shared lock; its owner's exclusive one stops that as well.
    const LockKind look = file ? LockKind::Exclusive : LockKind::Shared;
    if (!file) file = storage_.open_no_link(found.report.path, Access::ReadOnly);
    if (!file && file.error().errno_value == ENOENT) return std::nullopt;
    if (!file && file.error().errno_value == ELOOP) return is(JournalState::Unknown, "a symbolic link");
    if (!file) return is(JournalState::Unknown, file.error().message);
    found.file = std::move(*file);
    // Only a look: whoever keeps this lock without the archive's would pass for a committer.
    const auto conflict = found.file->try_lock(kOwnerByte, look);
    const bool is_in_use = conflict && *conflict;
    if (!is_in_use) found.file->unlock(kOwnerByte);
    const auto opened = found.file->status();
    const auto at_path = storage_.status(found.report.path);
    if (!opened) return is(JournalState::Unknown, opened.error().message);
    if (!at_path || !at_path->identity.same_file(opened->identity)) return std::nullopt;
    // A journal says what to write into the archive: one that was put there by somebody who may not
    // write the archive himself must not be believed.
    if (opened->uid != 0 && opened->uid != archive_uid && opened->uid != ::geteuid()) {
      return is(JournalState::Unknown,
                fmt::format("belongs to user {}, who owns neither the archive nor this "
                            "process: recover it as that user",
                            opened->uid));
    }
    if (is_staged && is_in_use) return is(JournalState::InUse, "being staged");
    if (is_staged) return is(JournalState::Unfinished, "a leftover of staging");
    if (is_void(*found.file)) return is(JournalState::Unfinished, "taken back by its owner");

    auto record = read_record(*found.file, opened->identity.size_bytes);
    if (!record) {
      const bool is_other_version = record.error().errno_value == EPROTONOSUPPORT;
      found.report.blocks_commits = true;
      return is(is_other_version ? JournalState::Unknown : JournalState::Damaged, record.error().message);
    }
    found.record = std::move(*record);
    found.report.ranges = found.record.ranges.size();
    for (const JournalRange& range : found.record.ranges) found.report.size_bytes += range.archive.size_bytes;
    if (!found.record.archive.matches(stamp)) {
      return is(JournalState::Foreign, "written for another archive, or for another state of this one");
    }
    if (auto sound = check_new_blocks(*found.file, found.record); !sound) {
      found.report.blocks_commits = true;
      return is(JournalState::Damaged, sound.error().message);
    }
    if (!found.record.coordinator.empty()) {
      found.report.blocks_commits = true;
      return is(JournalState::Unknown, "part of a transaction over several archives");
    }
    if (is_in_use) return is(JournalState::InUse, "its owner or a recovery is at work");
    return is(JournalState::Committed,
              fmt::format("committed by process {}, which has died", found.record.owner_pid));
  }

  Storage& storage_;
  const std::filesystem::path& archive_path_;
  const File& archive_;
};

/// Applies a committed journal, under the archive's locks first and the journal's own second: a committer
/// who holds the archive's locks then knows that nobody else is about to apply anything to his bytes. One
/// that has gone meanwhile was finished by its owner or by another recovery.
Result<void> apply(Storage& storage, const std::filesystem::path& archive_path, File& archive, Found& found) {
  std::vector<ByteRange> ranges;
  for (const JournalRange& range : found.record.ranges) ranges.push_back(range.archive);
  auto locks = ArchiveLocks::for_patch(archive, archive_path, ranges, kLockPatience);
  if (!locks && !lacks_locks(locks.error())) return pass_on(std::move(locks));
  const auto owner = found.file->try_lock(kOwnerByte, LockKind::Exclusive);
  if (owner && *owner) {
    return fail(ErrorCode::Busy, EBUSY, found.report.path.string() + ": somebody else is at work on it");
  }
  const auto opened = found.file->status();
  if (!opened) return tl::unexpected(opened.error());
  const auto at_path = storage.status(found.report.path);
  if (!at_path || !at_path->identity.same_file(opened->identity) || is_void(*found.file)) return {};
  // Its owner may have died before the journal or its name was on stable storage; a crash now must find it.
  if (auto synced = found.file->sync(); !synced) return synced;
  if (auto synced = storage.sync_directory(archive_path.parent_path()); !synced) return synced;
  if (auto applied = apply_ranges(archive, *found.file, found.record.ranges); !applied) return applied;
  if (auto synced = archive.sync(); !synced) return synced;
  if (auto removed = storage.remove(found.report.path); !removed) return removed;
  found.report.action = JournalAction::Applied;
  return storage.sync_directory(archive_path.parent_path());
}

/// Does with one journal what its state asks for.
Result<void> settle(Storage& storage, const std::filesystem::path& archive_path, File& archive, Found& found,
                    const RecoveryOptions& options) {
  JournalReport& report = found.report;
  // One in use that names blocks is as good as committed: with its owner's locks we see what became of it.
  bool is_due = report.state == JournalState::Committed ||
                (report.state == JournalState::InUse && !found.record.ranges.empty());
  if (report.state == JournalState::Foreign && options.is_forced) {
    auto known = only_knows_its_blocks(archive, found.record);
    if (!known) return pass_on(std::move(known));
    is_due = *known && check_new_blocks(*found.file, found.record);
    report.explanation += is_due ? "; every block is the old one or the new one"
                                 : "; and blocks of the archive are neither the old ones nor the new ones";
  }
  if (options.is_dry_run) return {};
  if (report.state == JournalState::Unfinished) {
    auto removed = storage.remove(report.path);
    if (!removed && removed.error().errno_value != ENOENT) return removed;
    report.action = JournalAction::Removed;
  }
  if (!is_due) return {};
  auto applied = apply(storage, archive_path, archive, found);
  // A living owner who takes his time finishes it himself.
  if (!applied && applied.error().code == ErrorCode::Busy && report.state == JournalState::InUse) return {};
  return applied;
}

bool names_any(const JournalRecord& record, std::span<const ByteRange> ranges) {
  return std::ranges::any_of(record.ranges, [&](const JournalRange& named) {
    return std::ranges::any_of(ranges, [&](ByteRange range) {
      const ByteRange blocks = {round_down_to_block(range.offset),
                                round_up_to_block(range.end()) - round_down_to_block(range.offset)};
      return named.archive.overlaps(blocks);
    });
  });
}

}  // namespace

std::string_view name_of(JournalState state) {
  switch (state) {
    case JournalState::Committed: return "committed";
    case JournalState::InUse: return "in use";
    case JournalState::Unfinished: return "unfinished";
    case JournalState::Foreign: return "foreign";
    case JournalState::Damaged: return "damaged";
    case JournalState::Unknown: return "unknown";
  }
  return "unknown";
}

Result<ArchiveStamp> stamp_of(const File& archive) {
  auto status = archive.status();
  if (!status) return pass_on(std::move(status));
  ArchiveStamp stamp{.device = status->identity.device,
                     .inode = status->identity.inode,
                     .birth_ns = status->birth_ns,
                     .size_bytes = status->identity.size_bytes};
  std::array<std::byte, kHeaderLengthBytes> first{};
  const std::span<std::byte> there(first.data(), std::min<std::uint64_t>(stamp.size_bytes, first.size()));
  if (auto read = archive.read(there, 0); !read) return pass_on(std::move(read));
  auto length = header_length(there, stamp.size_bytes);
  // What has no header any more matches no journal.
  if (!length) return stamp;
  auto text = read_text(archive, {kHeaderLengthBytes, *length});
  if (!text) return pass_on(std::move(text));
  stamp.header_size_bytes = *length;
  stamp.header_hash = XXH3_64bits(text->data(), text->size());
  return stamp;
}

Result<std::vector<JournalReport>> recover(Storage& storage, const std::filesystem::path& archive_path,
                                           File& archive, const RecoveryOptions& options) {
  return guard_memory([&]() -> Result<std::vector<JournalReport>> {
    auto journals = Scan(storage, archive_path, archive).all();
    if (!journals) return pass_on(std::move(journals));
    std::vector<JournalReport> reports;
    for (Found& found : *journals) {
      if (auto settled = settle(storage, archive_path, archive, found, options); !settled) {
        return pass_on(std::move(settled));
      }
      reports.push_back(std::move(found.report));
    }
    return reports;
  });
}

Result<Obstacle> find_obstacle(Storage& storage, const std::filesystem::path& archive_path,
                               const File& archive, std::span<const ByteRange> locked) {
  return guard_memory([&]() -> Result<Obstacle> {
    auto journals = Scan(storage, archive_path, archive).all();
    if (!journals) return pass_on(std::move(journals));
    Obstacle obstacle = Obstacle::None;
    for (const Found& found : *journals) {
      if (found.report.blocks_commits) {
        return fail(ErrorCode::ArchiveChanged, EIO,
                    fmt::format("{}: {}: nothing is written beside it; `stfs recover {}` explains",
                                found.report.path.string(), found.report.explanation, archive_path.string()));
      }
      if (found.report.state == JournalState::Committed) return Obstacle::DeadOwner;
      if (found.report.state == JournalState::InUse && names_any(found.record, locked)) {
        obstacle = Obstacle::Recovery;
      }
    }
    return obstacle;
  });
}

Result<std::vector<PendingJournal>> pending_journals(Storage& storage,
                                                     const std::filesystem::path& archive_path,
                                                     const File& archive) {
  return guard_memory([&]() -> Result<std::vector<PendingJournal>> {
    auto journals = Scan(storage, archive_path, archive).all();
    if (!journals) return pass_on(std::move(journals));
    std::vector<PendingJournal> pending;
    for (Found& found : *journals) {
      if (found.report.state != JournalState::Committed) continue;
      pending.push_back({std::move(found.file), std::move(found.record.ranges)});
    }
    return pending;
  });
}

}  // namespace stfs
