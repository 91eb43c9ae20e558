#include "core/journal/journal_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/base/xxh3.h"
#include "core/journal/group_record.h"
#include "core/journal/journal_access.h"
#include "core/journal/journal_apply.h"
#include "core/journal/journal_blocks.h"
#include "core/journal/lane_scan.h"
#include "core/storage/disk_space.h"

namespace stfs {
namespace {

constexpr const char* kSeveral = "part of a transaction over several archives";
constexpr const char* kForeign = "written for another archive, or for another state of this one";
constexpr const char* kUncertain =
    "written for this archive or for an earlier one of this name: the file system has no birth times, "
    "and blocks of the archive are neither the old ones nor the new ones";
constexpr const char* kLost =
    "committed with durability=process in an earlier boot: bytes that had not reached the disk are lost";
constexpr const char* kOtherVersionStep =
    "finish it with the version that wrote it; if it is deleted, its committed change is lost";
constexpr const char* kUncertainStep =
    "if the archive was replaced, delete it; otherwise a part of its change is lost: compare the archive "
    "with a copy";

void set(FoundJournal& found, JournalState state, std::string why) {
  found.report.state = state;
  found.report.explanation = std::move(why);
}

void block(FoundJournal& found, JournalState state, std::string why, std::string next_step = {}) {
  set(found, state, std::move(why));
  found.report.blocks_commits = true;
  found.report.next_step = std::move(next_step);
}

/// A lost journal is made void before it is removed: its name may come back once more.
void set_lost(FoundJournal& found) {
  set(found, JournalState::Unfinished, kLost);
  found.is_void = true;
}

std::uint64_t size_of(const JournalRecord& record) {
  std::uint64_t size_bytes = 0;
  for (const JournalRange& range : record.ranges) size_bytes += range.archive.size_bytes;
  return size_bytes;
}

std::string committed_by(const JournalRecord& record) {
  return fmt::format("committed by process {}, which has died", record.owner_pid);
}

Result<JournalHead> read_head(const File& file, std::uint64_t size_bytes) {
  if (size_bytes < kBlockBytes) return damaged("it is shorter than its head");
  auto block = read_text(file, {0, kBlockBytes});
  RETURN_IF_ERROR(block);
  return decode_head(*block);
}

/// Returns false for a record that no commit writes. At least half of a long record are hashes of new blocks,
/// and no hash is 0: so the range has bytes, even if the file system makes holes of zeros. Other users' long
/// records must cost them disk space before they cost this process memory.
bool may_be_written(const File& file, ByteRange record) {
  constexpr std::uint64_t kShortBytes = 1 << 20;
  if (record.size_bytes <= kShortBytes) return true;
  return has_bytes(file.descriptor(), record, record.size_bytes / 3);
}

/// Reads the record, and uses and keeps none of it before its hash agrees: a user who may create journals may
/// also create large ones. InvalidArgument: not a sound journal. Any other error: the journal could not be
/// read now.
Result<JournalRecord> read_record(const File& file, const JournalHead& head, std::uint64_t size_bytes,
                                  std::uint64_t archive_size_bytes) {
  const auto range = ByteRange::checked(head.record.offset, head.record.size_bytes);
  if (!range || range->end() > size_bytes) return damaged("it ends before its record does");
  // An edit may make the archive longer, by bytes in the journal.
  if (range->size_bytes > most_record_bytes(archive_size_bytes + range->offset)) {
    return damaged("its record is too long for the archive's blocks");
  }
  if (!may_be_written(file, *range)) return damaged("its record is a hole");
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hashing(XXH3_createState(),
                                                                                &XXH3_freeState);
  if (!hashing) throw std::bad_alloc();
  XXH3_64bits_reset(hashing.get());
  auto hashed =
      for_each_piece(file, *range, [&](std::span<const std::byte> piece, std::uint64_t) -> Result<void> {
        XXH3_64bits_update(hashing.get(), piece.data(), piece.size());
        return {};
      });
  RETURN_IF_ERROR(hashed);
  if (XXH3_64bits_digest(hashing.get()) != head.record_hash) {
    return damaged("its record's hash does not match");
  }
  auto text = read_text(file, *range);
  RETURN_IF_ERROR(text);
  auto record = decode_record(*text, size_bytes, kHead, head.version);
  if (record && record->id != head.id) return damaged("head and record belong to different journals");
  if (record) record->boot = head.boot;
  if (record) record->own = head.own;
  return record;
}

bool is_of_other_boot(const Boot& boot, const Boot& now) {
  return boot.is_known() && now.is_known() && boot.id != now.id;
}

/// If the host of one of the boots is unknown, both are assumed to be the same host.
bool is_lost(const Boot& boot, const Boot& now) {
  return is_of_other_boot(boot, now) && (boot.host == now.host || boot.host == 0 || now.host == 0);
}

/// Compares the record's archive with this stamp. An edit changes size and header. For an edit, the file's
/// numbers decide first, and the caller compares the blocks.
Kinship kinship_of(const JournalRecord& record, const ArchiveStamp& now) {
  if (!record.after) return record.archive.compare(now);
  const ArchiveStamp& before = record.archive;
  const bool is_other_file = before.birth_ns != 0 && now.birth_ns != 0 &&
                             (before.birth_ns != now.birth_ns || before.inode != now.inode);
  return is_other_file ? Kinship::Other : Kinship::Unsure;
}

/// The use of a sound record of a dead owner.
enum class Use : std::uint8_t { Apply, Drop, Refuse };

Result<Use> use_of(const JudgedArchive& archive, const File& journal, const JournalRecord& record) {
  const Boot now = archive.storage.boot();
  const bool is_other_boot = is_of_other_boot(record.boot, now);
  const Kinship kinship = kinship_of(record, archive.stamp);
  if (kinship == Kinship::Same && !is_other_boot) return Use::Apply;
  auto blocks = compare_blocks(archive.file, journal, record);
  RETURN_IF_ERROR(blocks);
  if (is_lost(record.boot, now)) return *blocks == KnownBlocks::Mixed ? Use::Apply : Use::Drop;
  if (*blocks == KnownBlocks::Other) return Use::Refuse;
  // In another boot or on another inode, sectors of the new block may have other causes than a power loss.
  const bool may_be_torn = !is_other_boot && record.archive.inode == archive.stamp.inode;
  if (*blocks == KnownBlocks::Torn && !may_be_torn) return Use::Refuse;
  return Use::Apply;
}

std::string never_committed(const GroupVerdict& group) {
  return fmt::format("{} that was never committed{}{}", kSeveral, group.ignored.empty() ? "" : "; ",
                     group.ignored);
}

/// Judges a journal that needs a group record. True if the group record has committed it. Otherwise false,
/// with the journal's state set by the state of the group record.
Result<bool> has_group_record(const JudgedArchive& archive, FoundJournal& found) {
  Storage& storage = archive.storage;
  const std::filesystem::path& path = found.report.path;
  if (!is_group_record_name(found.record.group_record)) {
    block(found, JournalState::Unknown, fmt::format("{}, and the path of its record is not valid", kSeveral));
    return false;
  }
  if (!archive.group_records.insert(found.record.group_record).second) {
    block(found, JournalState::Damaged,
          "damaged: another journal of the archive names the same group record");
    return false;
  }
  auto group = look_at_group_record(storage, path.parent_path() / found.record.group_record, path.filename(),
                                    archive.status);
  if (!group && is_forbidden(group.error())) {
    auto record = storage.status(path.parent_path() / found.record.group_record);
    RETURN_IF_ERROR(record);
    block(found, JournalState::Unknown, group.error().message, settling_advice(*record, storage.user()));
    return false;
  }
  if (!group && group.error().code != ErrorCode::InvalidArgument) return pass_on(std::move(group));
  if (!group) {
    const bool is_other_version = group.error().errno_value == EPROTONOSUPPORT;
    if (!is_other_version && is_lost(found.record.boot, storage.boot())) {
      set_lost(found);
    } else {
      block(found, JournalState::Damaged, group.error().message, is_other_version ? kOtherVersionStep : "");
    }
    return false;
  }
  if (group->state == GroupState::Committed) return true;
  set(found, JournalState::Unfinished, never_committed(*group));
  return false;
}

/// Returns the verdict of the group record if a dead owner's journal needs one that was never made. The
/// journal then promises nothing, even if an edit has changed the archive's stamp since.
std::optional<GroupVerdict> waits_in_vain(const JudgedArchive& archive, const FoundJournal& found) {
  if (found.is_in_use || !is_group_record_name(found.record.group_record)) return std::nullopt;
  const auto [known, is_new] = archive.in_vain.try_emplace(found.record.group_record);
  if (!is_new) return known->second;
  const std::filesystem::path& path = found.report.path;
  const auto group = look_at_group_record(archive.storage, path.parent_path() / found.record.group_record,
                                          path.filename(), archive.status);
  if (group && group->state == GroupState::Absent) known->second = *group;
  return known->second;
}

/// Returns true if the record was copied: the file was not made as this journal. Then also sets the
/// explanation.
bool is_copied(const JudgedArchive& archive, const JournalRecord& record, FoundJournal& found,
               const FileStatus& file) {
  if (!is_of_other_file(archive.storage, record.own, found.report.path, file, found.file->descriptor(),
                        archive.status))
    return false;
  block(found, JournalState::Unknown, std::string(kOfOtherFile), std::string(kOfOtherFileStep));
  return true;
}

/// Returns true if the record takes more memory than another user's journal may. Then also sets the
/// explanation.
bool is_too_long_of_other(const JudgedArchive& archive, const JournalHead& head, FoundJournal& found,
                          const FileStatus& file) {
  const std::uint32_t user = archive.storage.user();
  if (file.uid == user || file.uid == 0 || head.record.size_bytes <= kMostRecordBytesOfOthers) return false;
  block(found, JournalState::Unknown,
        fmt::format("of user {}, with a record of {} bytes: this process, of user {}, reads at most {}",
                    file.uid, head.record.size_bytes, user, kMostRecordBytesOfOthers),
        fmt::format("run `stfs recover` as user {}", file.uid));
  return true;
}

/// Judges a journal without a sound record.
Result<void> judge_without_record(const JudgedArchive& archive, FoundJournal& found, std::uint64_t size_bytes,
                                  const Boot& boot, const Error& why) {
  // Check this after reading the record: the owner makes the journal void when it has finished.
  auto taken_back = is_void(*found.file, size_bytes);
  RETURN_IF_ERROR(taken_back);
  found.is_void = *taken_back;
  if (*taken_back) {
    set(found, JournalState::Unfinished,
        size_bytes == 0 ? "left empty by a loss of power" : "made void by its owner or by a recovery");
    return {};
  }
  const bool is_other_version = why.errno_value == EPROTONOSUPPORT;
  if (found.is_in_use && !is_other_version) {
    set(found, JournalState::InUse, "its owner is writing it");
  } else if (is_other_version) {
    block(found, JournalState::Unknown, why.message, kOtherVersionStep);
  } else if (is_lost(boot, archive.storage.boot())) {
    set_lost(found);
  } else {
    block(found, JournalState::Damaged, why.message);
  }
  return {};
}

}  // namespace

Result<void> judge_ordinary(const JudgedArchive& archive, FoundJournal& found, const FileStatus& file) {
  const std::uint64_t size_bytes = file.identity.size_bytes;
  auto head = read_head(*found.file, size_bytes);
  if (head && is_too_long_of_other(archive, *head, found, file)) return {};
  auto record = head ? read_record(*found.file, *head, size_bytes, archive.stamp.size_bytes)
                     : Result<JournalRecord>(tl::unexpected(head.error()));
  if (!record && record.error().code != ErrorCode::InvalidArgument) return pass_on(std::move(record));
  if (!record) {
    return judge_without_record(archive, found, size_bytes, head ? head->boot : Boot{}, record.error());
  }
  found.record = std::move(*record);
  found.report.ranges = found.record.ranges.size();
  found.report.size_bytes = size_of(found.record);
  if (kinship_of(found.record, archive.stamp) == Kinship::Other) {
    const auto in_vain = waits_in_vain(archive, found);
    set(found, in_vain ? JournalState::Unfinished : JournalState::Foreign,
        in_vain ? never_committed(*in_vain) : kForeign);
    return {};
  }
  if (found.is_in_use) {
    set(found, JournalState::InUse, "its owner or a recovery is using it");
    return {};
  }
  if (is_copied(archive, found.record, found, file)) return {};
  if (auto sound = check_new_blocks(*found.file, found.record); !sound) {
    if (sound.error().code != ErrorCode::InvalidArgument) return sound;
    if (is_lost(found.record.boot, archive.storage.boot())) {
      set_lost(found);
    } else {
      block(found, JournalState::Damaged, sound.error().message);
    }
    found.record.ranges = {};  // which may be long
    return {};
  }
  if (!found.record.group_record.empty()) {
    auto committed = has_group_record(archive, found);
    RETURN_IF_ERROR(committed);
    if (!*committed) return {};
  }
  auto use = use_of(archive, *found.file, found.record);
  RETURN_IF_ERROR(use);
  switch (*use) {
    case Use::Apply: set(found, JournalState::Committed, committed_by(found.record)); break;
    case Use::Drop: set_lost(found); break;
    case Use::Refuse:
      // The file is the same, but another program has written another header.
      if (found.record.after && found.record.archive.birth_ns != 0 && archive.stamp.birth_ns != 0) {
        set(found, JournalState::Foreign, kForeign);
      } else {
        block(found, JournalState::Foreign, kUncertain, kUncertainStep);
      }
  }
  return {};
}

Result<void> judge_lanes(const JudgedArchive& archive, FoundJournal& found, const FileStatus& file) {
  const std::uint64_t size_bytes = file.identity.size_bytes;
  if (size_bytes == 0 && !found.is_in_use) {
    found.is_void = true;
    set(found, JournalState::Unfinished, "left empty by a loss of power");
    return {};
  }
  if (size_bytes != kLaneJournalBytes) {
    block(found, JournalState::Damaged, "damaged: its size has changed");
    return {};
  }
  auto records = read_lanes(*found.file);
  if (!records && records.error().errno_value == EPROTONOSUPPORT) {
    block(found, JournalState::Unknown, records.error().message, kOtherVersionStep);
    return {};
  }
  RETURN_IF_ERROR(records);
  if (found.is_in_use) {
    set(found, JournalState::InUse, "its owner keeps it for its next commit");
    for (JournalRecord& record : *records) {
      // Written for an archive that was replaced under the owner: the record names none of our bytes.
      if (kinship_of(record, archive.stamp) == Kinship::Other) continue;
      std::ranges::move(record.ranges, std::back_inserter(found.record.ranges));
      found.record.owner_pid = record.owner_pid;
    }
    return {};
  }
  for (JournalRecord& record : *records) {
    found.report.ranges = record.ranges.size();
    found.report.size_bytes = size_of(record);
    if (kinship_of(record, archive.stamp) == Kinship::Other) {
      set(found, JournalState::Foreign, kForeign);
      found.record = std::move(record);
      return {};
    }
    if (is_copied(archive, record, found, file)) return {};
    auto verdict = judge_lane(*found.file, record, archive.file);
    RETURN_IF_ERROR(verdict);
    if (*verdict == LaneVerdict::Torn) continue;
    if (*verdict == LaneVerdict::Damaged) {
      if (is_lost(record.boot, archive.storage.boot())) continue;
      block(found, JournalState::Damaged, "damaged: the hash of a block of new bytes does not match");
      found.record = std::move(record);
      return {};
    }
    if (!record.group_record.empty()) {
      block(found, JournalState::Unknown, kSeveral);
      return {};
    }
    auto use = use_of(archive, *found.file, record);
    RETURN_IF_ERROR(use);
    if (*use == Use::Drop) continue;
    if (*use == Use::Apply) {
      set(found, JournalState::Committed, committed_by(record));
    } else {
      block(found, JournalState::Foreign, kUncertain, kUncertainStep);
    }
    found.record = std::move(record);
    return {};
  }
  set(found, JournalState::Unfinished, "left by a process that has died; it holds no commit");
  found.report.ranges = found.report.size_bytes = 0;
  found.is_void = true;
  return {};
}

}  // namespace stfs
