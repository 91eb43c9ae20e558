#include "core/journal/recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "core/base/shell_word.h"
#include "core/journal/file_lock.h"
#include "core/journal/file_replacement.h"
#include "core/journal/group_record.h"
#include "core/journal/journal_apply.h"
#include "core/journal/journal_blocks.h"
#include "core/journal/journal_file.h"
#include "core/journal/lane_scan.h"
#include "core/storage/lock_holder.h"
#include "core/storage/permissions.h"

namespace stfs {
namespace {

constexpr std::array kWholeFile = {ByteRange{0, std::uint64_t{1} << 62U}};

/// Returns true if every block of the archive is the old one or the new one: applying then destroys nothing
/// else.
Result<bool> only_knows_its_blocks(const File& archive, const File& journal, const JournalRecord& record) {
  auto blocks = compare_blocks(archive, journal, record);
  RETURN_IF_ERROR(blocks);
  return *blocks != KnownBlocks::Other && *blocks != KnownBlocks::Torn;
}

/// Tries to take the journal's lock. True: a process that may write the journal holds it. A user who may only
/// read the journal can hold a shared lock on it for ever, and no owner and no recovery holds a shared lock.
/// So shared locks are ignored: the locks of the archive exclude other recoveries that apply this journal.
Result<bool> conflicts_with_writer(File& journal) {
  auto conflict = journal.try_lock(kOwnerByte, LockKind::Exclusive);
  if (!conflict && lacks_locks(conflict.error())) return false;
  RETURN_IF_ERROR(conflict);
  if (!*conflict) return false;
  return journal.is_locked_by_other(kOwnerByte, LockKind::Shared);
}

ByteRange heads_of(const FoundJournal& found) {
  return found.is_lane_journal ? kLaneHeads : kHead;
}

/// Returns true if the owner of an open journal has made it void: its heads are zeros then.
Result<bool> is_taken_back(const FoundJournal& found) {
  RETURN_IF_ERROR(found.file->refresh(kWholeFile));
  auto size_bytes = found.file->size_bytes();
  RETURN_IF_ERROR(size_bytes);
  if (!found.is_lane_journal || *size_bytes < kLaneHeads.end()) return is_void(*found.file, *size_bytes);
  auto heads = read_text(*found.file, kLaneHeads);
  RETURN_IF_ERROR(heads);
  return heads->find_first_not_of('\0') == std::string::npos;
}

/// Returns true if the journal still has its name. A journal that promises nothing may be removed twice, so a
/// status is enough: to list the directory for each of thousands would take quadratic time.
Result<bool> has_name(Storage& storage, const FoundJournal& found) {
  if (found.report.state != JournalState::Unfinished) return is_listed(storage, found.report.path);
  auto opened = found.file->status();
  RETURN_IF_ERROR(opened);
  return is_at(storage, found.report.path, *opened);
}

Result<bool> take_named(Storage& storage, FoundJournal& found) {
  auto is_used = conflicts_with_writer(*found.file);
  RETURN_IF_ERROR(is_used);
  auto is_there = has_name(storage, found);
  if (is_there && *is_there && *is_used) {
    return fail(ErrorCode::Busy, EBUSY, found.report.path.string() + ": another process is using it");
  }
  if (!is_there || !*is_there) return is_there;
  if (is_group_record_name(found.report.path.filename().native())) {
    auto has = has_journals(storage, found.report.path, *found.file);
    if (!has || *has) return has ? Result<bool>(false) : has;
    // The zero that makes the record void may not be on the disk yet (look_at_group_record()).
    RETURN_IF_ERROR(found.file->sync());
  }
  auto taken_back = is_taken_back(found);
  RETURN_IF_ERROR(taken_back);
  return !*taken_back || found.report.state == JournalState::Unfinished;
}

/// Takes the journal's own lock. False if the journal does not exist any more or was taken back. The journal
/// is then hidden: there is nothing to report.
Result<bool> take(Storage& storage, FoundJournal& found) {
  auto taken = take_named(storage, found);
  if (!taken && says_gone(taken.error())) taken = false;
  found.is_hidden = taken && !*taken;
  return taken;
}

/// Does the same for a dead owner's journal, under the archive's locks. If another process holds the
/// journal's lock without the archive's, that process is about to remove the journal, so this waits.
Result<bool> take_from_dead(Storage& storage, FoundJournal& found, Deadline wait_until) {
  constexpr std::chrono::milliseconds kPause{2};
  for (;;) {
    auto taken = take(storage, found);
    const bool is_busy = !taken && taken.error().code == ErrorCode::Busy;
    if (!is_busy) return taken;
    if (time_left(wait_until).count() == 0) {
      return fail(ErrorCode::Busy, EBUSY,
                  fmt::format("{}: {} holds a lock on it and does not release it", found.report.path.string(),
                              holder_text(found.file->lock_holder(kOwnerByte))));
    }
    std::this_thread::sleep_for(kPause);
  }
}

tl::unexpected<Error> only_others_may(const FoundJournal& found) {
  return fail(ErrorCode::System, EACCES,
              fmt::format("{}: {}; this process may not write it: {}", found.report.path.string(),
                          found.report.explanation, found.advice));
}

/// Makes the other lane void, which may hold an earlier record. If both were made void together, a crash
/// might leave only that earlier record.
Result<void> void_other_lanes(File& lane_journal, const JournalRecord& record) {
  const std::vector<std::byte> zeros(kBlockBytes);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (lane == lane_of(record)) continue;
    for (const std::size_t head : {lane, kLanes + lane}) {
      RETURN_IF_ERROR(lane_journal.write(zeros, kLaneHeads.offset + head * kBlockBytes));
    }
  }
  return {};
}

/// Returns the group record that has committed the journal; empty if there is none.
std::filesystem::path group_record_of(const FoundJournal& found) {
  const bool may_have_one =
      found.is_void ? !found.is_lane_journal : found.report.state != JournalState::Unfinished;
  if (!may_have_one || found.record.group_record.empty()) return {};
  return found.report.path.parent_path() / found.record.group_record;
}

/// Finds the group record of each void journal, whose own bytes do not name it any more.
Result<void> find_group_records_of_void(Storage& storage, const std::filesystem::path& directory,
                                        const File& archive, std::vector<FoundJournal>& journals) {
  std::set<std::string> names;
  for (const FoundJournal& found : journals) {
    if (found.is_void && !found.is_lane_journal) names.insert(found.report.path.filename());
  }
  if (names.empty()) return {};
  const auto writers = strict_status_of(archive);
  RETURN_IF_ERROR(writers);
  const auto records = find_group_records(storage, directory, names, *writers);
  RETURN_IF_ERROR(records);
  for (FoundJournal& found : journals) {
    if (!names.contains(found.report.path.filename())) continue;
    const auto record = records->find(found.report.path.filename());
    found.record.group_record = record == records->end() ? "" : record->second;
  }
  return {};
}

/// Removes each group record whose last journal was removed.
Result<void> remove_group_records(Storage& storage, const std::set<std::filesystem::path>& group_records) {
  if (group_records.empty()) return {};
  const auto names = DirectoryNames::list(storage, group_records.begin()->parent_path());
  RETURN_IF_ERROR(names);
  for (const std::filesystem::path& path : group_records) {
    RETURN_IF_ERROR(remove_without_journals(storage, path, *names));
  }
  return {};
}

/// Removes a journal's name, or leaves it if this process may not remove it: in a directory with the sticky
/// bit only root and the owners of the file and of the directory may. The name may stay if the journal is
/// void. A void journal, a staged file and a group record without journals promise nothing.
/// @param made_void  whether the caller has made the journal void.
Result<bool> remove_or_leave(Storage& storage, FoundJournal& found, bool made_void) {
  // On a file system without unnamed files, the stager's last close removes the staged name.
  auto removed = remove_if_there(storage, found.report.path);
  if (removed) return true;
  if (!is_forbidden(removed.error())) return pass_on(std::move(removed));
  const std::string name = found.report.path.filename().string();
  if (!made_void && !name.ends_with(kStagedSuffix) && !name.ends_with(kGroupSuffix)) {
    RETURN_IF_ERROR(make_void(*found.file, heads_of(found)));
  }
  found.report.is_left_void = true;
  found.report.settlers = found.settlers;
  return false;
}

/// Applies a committed journal. Takes the archive's locks first and the journal's own second: a committer
/// that holds the archive's locks then knows that no other process is about to apply anything to its bytes.
/// If the journal does not exist any more, its owner or another recovery has finished it.
/// @param only_judges  judges the journal of an owner that was alive during the scan, and applies nothing.
Result<void> apply(Storage& storage, const std::filesystem::path& archive_path, File& archive,
                   FoundJournal& found, Deadline wait_until, bool only_judges = false) {
  std::vector<ByteRange> ranges;
  for (const JournalRange& range : found.record.ranges) ranges.push_back(range.archive);
  auto locks = found.record.after
                   ? ArchiveLocks::for_edit(archive, archive_path, time_left(wait_until))
                   : ArchiveLocks::for_patch(archive, archive_path, std::move(ranges), time_left(wait_until));
  if (!locks && !lacks_locks(locks.error())) return pass_on(std::move(locks));
  const bool is_in_use = found.report.state == JournalState::InUse;
  // Do not wait for an owner that was alive during the scan, whatever state its journal has now.
  auto still =
      is_in_use || found.is_in_use ? take(storage, found) : take_from_dead(storage, found, wait_until);
  RETURN_IF_ERROR(still);
  if (!*still) return {};
  if (is_in_use) {
    // The owner was alive during the scan, so the journal's bytes were not checked. The owner may have died
    // before its commit.
    auto is_there = judge_again(storage, archive_path, archive, found);
    RETURN_IF_ERROR(is_there);
    if (!*is_there || found.report.state != JournalState::Committed) return {};
  }
  if (only_judges) {
    found.file->unlock(kOwnerByte);
    return {};
  }
  if (found.is_lane_journal) {
    RETURN_IF_ERROR(void_other_lanes(*found.file, found.record));
  }
  // The owner may have died before the journal or its name was on stable storage. A crash now must find both.
  RETURN_IF_ERROR(found.file->sync());
  RETURN_IF_ERROR(storage.sync_directory(archive_path.parent_path()));
  if (auto applied = apply_ranges(archive, *found.file, found.record.ranges, {}, found.record.after);
      !applied)
    return applied;
  RETURN_IF_ERROR(archive.sync());
  if (found.record.index) {
    RETURN_IF_ERROR(replace_index(storage, found.report.path, *found.file, *found.record.index,
                                  RightOf::JournalMaker, Durability::Power));
  }
  RETURN_IF_ERROR(make_void(*found.file, heads_of(found)));
  found.report.action = JournalAction::Applied;
  auto removed = remove_or_leave(storage, found, true);
  return removed ? Result<void>{} : pass_on(std::move(removed));
}

/// Finishes the other archives of the transaction of a journal that replaces the index. The caller holds no
/// lock of the archive.
Result<void> finish_others(Storage& storage, const FoundJournal& found, Deadline wait_until) {
  const std::filesystem::path directory = found.report.path.parent_path();
  auto journals = journals_of_group(storage, directory / found.record.group_record);
  RETURN_IF_ERROR(journals);
  const auto names = DirectoryNames::list(storage, directory);
  RETURN_IF_ERROR(names);
  for (const std::string& journal : *journals) {
    if (journal == found.report.path.filename()) continue;
    auto path = names->has(journal) ? names->archive_of(journal) : std::filesystem::path();
    RETURN_IF_ERROR(path);
    if (path->empty()) continue;
    auto archive = storage.open_no_link(*path, Access::ReadWrite);
    if (!archive && archive.error().errno_value == ENOENT) continue;
    RETURN_IF_ERROR(archive);
    auto recovered = recover(storage, *path, **archive, {.is_alone = true, .wait_until = wait_until});
    RETURN_IF_ERROR(recovered);
  }
  return {};
}

/// Applies a committed journal after the journals that have to be applied before it.
Result<void> apply_in_order(Storage& storage, const std::filesystem::path& archive_path, File& archive,
                            FoundJournal& found, const RecoveryOptions& options) {
  const bool comes_last = found.record.index && !found.record.group_record.empty() && !options.is_alone;
  if (!comes_last) return apply(storage, archive_path, archive, found, options.wait_until);
  if (found.report.state == JournalState::InUse) {
    auto judged = apply(storage, archive_path, archive, found, options.wait_until, true);
    if (!judged || found.report.state != JournalState::Committed) return judged;
  }
  RETURN_IF_ERROR(finish_others(storage, found, options.wait_until));
  return apply(storage, archive_path, archive, found, options.wait_until);
}

/// Acts on one journal according to its state.
Result<void> settle(Storage& storage, const std::filesystem::path& archive_path, File& archive,
                    FoundJournal& found, const RecoveryOptions& options) {
  JournalReport& report = found.report;
  // Treat an ordinary journal in use that names blocks as committed: once we hold the locks that its owner
  // holds, we see whether it was. Leave a lane journal in use alone: its last commit is applied, or its
  // owner is about to apply it.
  bool is_due =
      report.state == JournalState::Committed ||
      (report.state == JournalState::InUse && !found.is_lane_journal && !found.record.ranges.empty());
  if (report.state == JournalState::Foreign && options.is_forced) {
    auto opened = open_found(storage, found);
    RETURN_IF_ERROR(opened);
    found.is_hidden = !*opened;
    if (!*opened) return {};
    auto known = only_knows_its_blocks(archive, *found.file, found.record);
    RETURN_IF_ERROR(known);
    // A recovery of one archive must not decide a transaction over several archives.
    const bool is_alone = found.record.group_record.empty();
    is_due = is_alone && *known && check_new_blocks(*found.file, found.record);
    if (is_due) {
      report.explanation += "; every block is the old one or the new one";
    } else if (!is_alone) {
      report.explanation += "; and part of a transaction over several archives";
    } else {
      report.explanation += "; and blocks of the archive are neither the old ones nor the new ones";
    }
  }
  if (options.is_dry_run || report.is_ignored) return {};
  if (found.is_read_only) {
    // A leftover of staging promises nothing, so it may stay.
    const bool may_stay = report.state == JournalState::InUse || (!is_due && !found.is_void);
    if (may_stay) return {};
    return only_others_may(found);
  }
  if (report.state == JournalState::Unfinished) {
    auto opened = open_found(storage, found);
    RETURN_IF_ERROR(opened);
    found.is_hidden = !*opened;
    if (!*opened) return {};
    auto still = take(storage, found);
    if (!still && still.error().code == ErrorCode::Busy) {
      // Another process is removing it now.
      report.state = JournalState::InUse;
      return {};
    }
    RETURN_IF_ERROR(still);
    if (!*still) return {};
    // The disk may still hold a record: the zeros may be unsynced, or their owner's sync may have failed.
    if (found.is_void) {
      RETURN_IF_ERROR(make_void(*found.file, heads_of(found)));
    }
    auto removed = remove_or_leave(storage, found, found.is_void);
    RETURN_IF_ERROR(removed);
    if (*removed) report.action = JournalAction::Removed;
  }
  if (!is_due) return {};
  auto applied = apply_in_order(storage, archive_path, archive, found, options);
  // The owner is alive and slow. It finishes the journal itself.
  if (!applied && applied.error().code == ErrorCode::Busy && report.state == JournalState::InUse) return {};
  return applied;
}

bool names_any(const JournalRecord& record, std::span<const ByteRange> ranges) {
  return std::ranges::any_of(record.ranges, [&](const JournalRange& named) {
    return std::ranges::any_of(ranges, [&](ByteRange range) {
      const ByteRange blocks = {round_down_to_block(range.offset),
                                round_up_to_block(range.end()) - round_down_to_block(range.offset)};
      // Round a patch out to blocks, as locks are.
      const std::uint64_t begin = round_down_to_block(named.archive.offset);
      return blocks.overlaps({begin, round_up_to_block(named.archive.end()) - begin});
    });
  });
}

}  // namespace

Result<std::vector<JournalReport>> recover(Storage& storage, const std::filesystem::path& archive_path,
                                           File& archive, const RecoveryOptions& options) {
  return guard_memory([&]() -> Result<std::vector<JournalReport>> {
    auto journals = scan_journals(storage, archive_path, archive);
    RETURN_IF_ERROR(journals);
    if (!options.is_dry_run) {
      RETURN_IF_ERROR(find_group_records_of_void(storage, archive_path.parent_path(), archive, *journals));
    }
    std::vector<JournalReport> reports;
    std::set<std::filesystem::path> group_records;  // of journals that were removed
    Result<void> settled;
    RecoveryOptions how = options;
    for (FoundJournal& found : *journals) {
      const auto began = std::chrono::steady_clock::now();
      settled = settle(storage, archive_path, archive, found, how);
      if (!settled) break;
      // Time spent on work does not reduce the time to wait.
      if (found.report.action != JournalAction::None)
        how.wait_until += std::chrono::steady_clock::now() - began;
      found.file.reset();  // there may be thousands
      if (found.report.action != JournalAction::None) {
        if (auto group_record = group_record_of(found); !group_record.empty())
          group_records.insert(std::move(group_record));
      }
      if (!found.is_hidden) reports.push_back(std::move(found.report));
    }
    const auto removed = remove_group_records(storage, group_records);
    RETURN_IF_ERROR(settled);
    RETURN_IF_ERROR(removed);
    return reports;
  });
}

Result<Obstacle> find_obstacle(Storage& storage, const std::filesystem::path& archive_path,
                               const File& archive, std::span<const ByteRange> locked,
                               const std::filesystem::path& own,
                               std::span<const std::filesystem::path> left_void) {
  return guard_memory([&]() -> Result<Obstacle> {
    auto journals = scan_journals(storage, archive_path, archive, own);
    RETURN_IF_ERROR(journals);
    Obstacle obstacle = Obstacle::None;
    for (const FoundJournal& found : *journals) {
      if (found.report.blocks_commits) {
        const std::string next_step =
            found.report.next_step.empty()
                ? fmt::format("`stfs recover {}` explains", shell_word(archive_path.native()))
                : found.report.next_step;
        return fail(ErrorCode::ArchiveChanged, EIO,
                    fmt::format("{}: {}; nothing is written to the archive while it exists; {}",
                                found.report.path.string(), found.report.explanation, next_step));
      }
      // This process made the journal void, so it is void on the disk as well.
      if (found.is_void && std::ranges::find(left_void, found.report.path) != left_void.end()) continue;
      const bool is_dead =
          !found.is_in_use && (found.is_void || found.report.state == JournalState::Committed);
      if (is_dead && found.is_read_only) return only_others_may(found);
      if (is_dead) return Obstacle::DeadOwner;
      if (!found.is_in_use || (found.report.state != JournalState::InUse && !found.is_void)) continue;
      if (names_any(found.record, locked)) {
        if (obstacle != Obstacle::Recovery) {
          obstacle = found.is_lane_journal ? Obstacle::Unsettled : Obstacle::Recovery;
        }
      } else if (found.is_lane_journal || found.is_void) {
        // Sync a void journal before relying on it: the zeros must be on the disk.
        if (auto synced = found.file->sync(); !synced && !says_gone(synced.error())) {
          return pass_on(std::move(synced));
        }
      }
    }
    return obstacle;
  });
}

Result<PendingJournals> pending_journals(Storage& storage, const std::filesystem::path& archive_path,
                                         const File& archive) {
  return guard_memory([&]() -> Result<PendingJournals> {
    auto journals = scan_journals(storage, archive_path, archive);
    RETURN_IF_ERROR(journals);
    PendingJournals pending;
    for (FoundJournal& found : *journals) {
      if (found.report.blocks_commits || found.report.is_ignored) {
        pending.not_shown.push_back(found.report);
      }
      if (found.report.state != JournalState::Committed) continue;
      pending.shown.push_back({.file = std::move(found.file),
                               .ranges = std::move(found.record.ranges),
                               .after = found.record.after,
                               .index = std::move(found.record.index)});
    }
    return pending;
  });
}

}  // namespace stfs
