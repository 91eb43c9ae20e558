// Classify each journal.
#include "core/journal_scan.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>

#include "core/coordinator.h"
#include "core/header.h"
#include "core/journal_apply.h"
#include "core/journal_file.h"
#include "core/standing_scan.h"

namespace stfs {
namespace {

constexpr std::size_t kIdDigits = 32;
constexpr const char* kSeveral = "part of a transaction over several archives";
constexpr const char* kForeign = "written for another archive, or for another state of this one";

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
/// InvalidArgument means that it is no sound journal; every other error, that it could not be read just now.
Result<JournalRecord> read_record(const File& file, std::uint64_t size_bytes) {
  if (size_bytes < kBlockBytes) {
    return fail(ErrorCode::InvalidArgument, EINVAL, "damaged: it is shorter than its head");
  }
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
  return decode_sealed_record(*text, *head, size_bytes);
}

class Scan {
 public:
  Scan(Storage& storage, const std::filesystem::path& archive_path, const File& archive,
       const std::filesystem::path& own)
      : storage_(storage), archive_path_(archive_path), archive_(archive), own_(own) {}

  Result<std::vector<FoundJournal>> all() {
    const std::string prefix = journal_prefix(archive_path_.filename().string());
    auto names = storage_.list(archive_path_.parent_path(), prefix);
    if (!names) return pass_on(std::move(names));
    std::vector<FoundJournal> found;
    std::erase(*names, own_.filename().string());
    if (names->empty()) return found;
    std::ranges::sort(*names);
    auto stamp = stamp_of(archive_);
    if (!stamp) return pass_on(std::move(stamp));
    auto status = archive_.status();
    if (!status) return pass_on(std::move(status));
    for (const std::string& name : *names) {
      auto journal = look_at(name, name.substr(prefix.size()), *stamp, status->uid);
      if (!journal) return pass_on(std::move(journal));
      if (*journal) found.push_back(std::move(**journal));
    }
    std::ranges::stable_sort(found, {}, [](const FoundJournal& journal) { return journal.record.sequence; });
    return found;
  }

 private:
  /// Nothing where the journal has gone in the meantime: its owner has retired it. A failure to look is an
  /// error: a committed journal that is passed over leaves the archive torn.
  Result<std::optional<FoundJournal>> look_at(const std::string& name, std::string_view rest,
                                              const ArchiveStamp& stamp, std::uint32_t archive_uid) {
    FoundJournal found;
    found.report.path = archive_path_.parent_path() / name;
    const auto is = [&found](JournalState state, std::string why) -> Result<std::optional<FoundJournal>> {
      found.report.state = state;
      found.report.explanation = std::move(why);
      return std::optional(std::move(found));
    };
    const bool is_staged = rest.ends_with(kStagedSuffix);
    if (is_staged) rest.remove_suffix(kStagedSuffix.size());
    found.is_standing = rest.ends_with(kStandingSuffix);
    if (found.is_standing) rest.remove_suffix(kStandingSuffix.size());
    const bool is_group = !found.is_standing && rest.ends_with(kGroupSuffix);
    if (is_group) rest.remove_suffix(kGroupSuffix.size());
    if (rest.size() != kIdDigits || !is_hexadecimal(rest))
      return is(JournalState::Unknown, "not a journal's name");

    auto file = storage_.open_no_link(found.report.path, Access::ReadWrite);
    // A descriptor that may only read can take a shared lock; its owner's exclusive one stops that as well.
    const LockKind look = file ? LockKind::Exclusive : LockKind::Shared;
    if (!file) file = storage_.open_no_link(found.report.path, Access::ReadOnly);
    if (!file) {
      switch (file.error().errno_value) {
        case ENOENT: return std::nullopt;
        case ELOOP: return is(JournalState::Unknown, "a symbolic link");
        // A directory, a device, a file of somebody else's.
        case EISDIR:
        case EINVAL:
        case EACCES:
        case EPERM: return is(JournalState::Unknown, file.error().message);
        default: return pass_on(std::move(file));
      }
    }
    found.file = std::move(*file);
    // Only a look: whoever keeps this lock without the archive's would pass for a committer.
    const auto conflict = found.file->try_lock(kOwnerByte, look);
    const bool is_in_use = found.is_in_use = conflict && *conflict;
    if (!is_in_use) found.file->unlock(kOwnerByte);
    auto opened = found.file->status();
    if (!opened) return pass_on(std::move(opened));
    auto is_there = is_at(storage_, found.report.path, *opened);
    if (!is_there) return pass_on(std::move(is_there));
    if (!*is_there) return std::nullopt;
    // A journal says what to write into the archive: one that was put there by somebody who may not
    // write the archive himself must not be believed.
    if (opened->uid != 0 && opened->uid != archive_uid && opened->uid != ::geteuid()) {
      return is(JournalState::Unknown,
                fmt::format("belongs to user {}, who owns neither the archive nor this "
                            "process: recover it as that user",
                            opened->uid));
    }
    if (is_group) {
      auto rules = is_in_use ? Result<bool>(true) : has_journals(storage_, found.report.path);
      if (!rules && rules.error().code == ErrorCode::InvalidArgument) {
        return is(JournalState::Unknown, rules.error().message);
      }
      if (!rules) return pass_on(std::move(rules));
      // Then its journals tell all that there is to tell.
      if (*rules) return std::nullopt;
      return is(JournalState::Unfinished, "a leftover of a transaction over several archives");
    }
    if (is_staged && is_in_use) return is(JournalState::InUse, "being staged");
    if (is_staged) return is(JournalState::Unfinished, "a leftover of staging");
    if (found.is_standing) {
      auto described = describe_standing(found, opened->identity.size_bytes, stamp, is_in_use);
      if (!described) return pass_on(std::move(described));
      return std::optional(std::move(found));
    }
    auto record = read_record(*found.file, opened->identity.size_bytes);
    if (!record && record.error().code != ErrorCode::InvalidArgument) return pass_on(std::move(record));
    if (!record) {
      // Looked at after the record: its owner makes it void when he is done.
      auto taken_back = is_void(*found.file, opened->identity.size_bytes);
      if (!taken_back) return pass_on(std::move(taken_back));
      found.is_void = *taken_back;
      if (*taken_back) return is(JournalState::Unfinished, "taken back by its owner");
      const bool is_other_version = record.error().errno_value == EPROTONOSUPPORT;
      if (is_in_use && !is_other_version) return is(JournalState::InUse, "its owner is at work on it");
      found.report.blocks_commits = true;
      return is(is_other_version ? JournalState::Unknown : JournalState::Damaged, record.error().message);
    }
    found.record = std::move(*record);
    found.report.ranges = found.record.ranges.size();
    found.report.size_bytes = size_of(found.record);
    if (!found.record.archive.matches(stamp)) {
      return is(JournalState::Foreign, kForeign);
    }
    if (auto sound = check_new_blocks(*found.file, found.record); !sound) {
      if (sound.error().code != ErrorCode::InvalidArgument) return pass_on(std::move(sound));
      found.report.blocks_commits = true;
      return is(JournalState::Damaged, sound.error().message);
    }
    if (is_in_use) return is(JournalState::InUse, "its owner or a recovery is at work");
    if (found.record.coordinator.empty()) return is(JournalState::Committed, committed_by(found.record));
    if (!is_coordinator_name(found.record.coordinator)) {
      found.report.blocks_commits = true;
      return is(JournalState::Unknown, fmt::format("{}, whose record can't be where it says", kSeveral));
    }
    const auto coordinator = archive_path_.parent_path() / found.record.coordinator;
    auto group = look_at_coordinator(storage_, coordinator, name);
    if (!group && group.error().code != ErrorCode::InvalidArgument) return pass_on(std::move(group));
    if (!group) {
      found.report.blocks_commits = true;
      return is(JournalState::Damaged, group.error().message);
    }
    if (*group == GroupState::Absent) {
      return is(JournalState::Unfinished, fmt::format("{} that was never committed", kSeveral));
    }
    return is(JournalState::Committed, committed_by(found.record));
  }

  /// Fills in what is known of a standing journal.
  Result<void> describe_standing(FoundJournal& found, std::uint64_t size_bytes, const ArchiveStamp& stamp,
                                 bool is_in_use) {
    JournalReport& report = found.report;
    if (size_bytes != kStandingBytes) {
      report.state = JournalState::Damaged;
      report.blocks_commits = true;
      report.explanation = "damaged: it has not the size that it was made with";
      return {};
    }
    auto records = read_lanes(*found.file);
    if (!records && records.error().errno_value == EPROTONOSUPPORT) {
      report.state = JournalState::Unknown;
      report.blocks_commits = true;
      report.explanation = records.error().message;
      return {};
    }
    if (!records) return pass_on(std::move(records));
    if (is_in_use) {
      report.state = JournalState::InUse;
      report.explanation = "its owner keeps it for his next commit";
      for (JournalRecord& record : *records) {
        // Of an archive that was replaced under its owner: none of our bytes.
        if (!record.archive.matches(stamp)) continue;
        std::ranges::move(record.ranges, std::back_inserter(found.record.ranges));
        found.record.owner_pid = record.owner_pid;
      }
      return {};
    }
    report.state = JournalState::Unfinished;
    report.explanation = "kept for the next commit by a process that has died";
    for (JournalRecord& record : *records) {
      report.ranges = record.ranges.size();
      report.size_bytes = size_of(record);
      if (!record.archive.matches(stamp)) {
        report.state = JournalState::Foreign;
        report.explanation = kForeign;
        found.record = std::move(record);
        return {};
      }
      auto verdict = judge_lane(*found.file, record, archive_);
      if (!verdict) return pass_on(std::move(verdict));
      if (*verdict == LaneVerdict::Torn) continue;
      const bool is_sound = *verdict == LaneVerdict::Sound;
      if (is_sound && !record.coordinator.empty()) {
        report.state = JournalState::Unknown;
        report.blocks_commits = true;
        report.explanation = kSeveral;
        return {};
      }
      report.state = is_sound ? JournalState::Committed : JournalState::Damaged;
      report.blocks_commits = !is_sound;
      report.explanation =
          is_sound ? committed_by(record) : "damaged: the hash of a block of new bytes does not agree";
      found.record = std::move(record);
      return {};
    }
    report.ranges = report.size_bytes = 0;
    found.is_void = true;
    return {};
  }

  static std::uint64_t size_of(const JournalRecord& record) {
    std::uint64_t size_bytes = 0;
    for (const JournalRange& range : record.ranges) size_bytes += range.archive.size_bytes;
    return size_bytes;
  }

  static std::string committed_by(const JournalRecord& record) {
    return fmt::format("committed by process {}, which has died", record.owner_pid);
  }

  Storage& storage_;
  const std::filesystem::path& archive_path_;
  const File& archive_;
  const std::filesystem::path& own_;
};

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

Result<bool> is_void(const File& file, std::uint64_t size_bytes) {
  if (size_bytes < kBlockBytes) return false;
  auto block = read_text(file, {0, kBlockBytes});
  if (!block) return pass_on(std::move(block));
  return block->find_first_not_of('\0') == std::string::npos;
}

Result<bool> is_at(Storage& storage, const std::filesystem::path& path, const FileStatus& file) {
  auto at_path = storage.status(path);
  if (!at_path && at_path.error().errno_value == ENOENT) return false;
  if (!at_path) return pass_on(std::move(at_path));
  return at_path->identity.same_file(file.identity);
}

Result<std::vector<FoundJournal>> scan_journals(Storage& storage, const std::filesystem::path& archive_path,
                                                const File& archive, const std::filesystem::path& own) {
  return Scan(storage, archive_path, archive, own).all();
}

}  // namespace stfs
