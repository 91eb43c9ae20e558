// Finds each journal, checks whether it is believed and whether its owner lives, then judges it
// (journal_verdict.h).
#include "core/journal/journal_scan.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "core/format/header.h"
#include "core/journal/byte_patch.h"
#include "core/journal/file_replacement.h"
#include "core/journal/group_record.h"
#include "core/journal/journal_access.h"
#include "core/journal/journal_apply.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_verdict.h"
#include "core/storage/group_members.h"
#include "core/storage/permissions.h"

namespace stfs {
namespace {

constexpr std::size_t kIdDigits = 32;
/// Limits the number of rescans: with many writers, some journal vanishes in every round.
constexpr int kMostRounds = 8;

bool is_hexadecimal(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

enum class NameKind : std::uint8_t { Ordinary, Staged, Lanes, Group };

/// Returns nothing if the name is not a journal's.
std::optional<NameKind> kind_of(std::string_view rest) {
  NameKind kind = NameKind::Ordinary;
  if (rest.ends_with(kStagedSuffix)) {
    rest.remove_suffix(kStagedSuffix.size());
    kind = NameKind::Staged;
  }
  // A staged file has the suffix of its kind, and after it the suffix of staging.
  for (const auto& [suffix, meaning] :
       {std::pair{kLaneJournalSuffix, NameKind::Lanes}, {kGroupSuffix, NameKind::Group}}) {
    if (!rest.ends_with(suffix)) continue;
    rest.remove_suffix(suffix.size());
    if (kind != NameKind::Staged) kind = meaning;
    break;
  }
  const bool is_id = rest.size() == kIdDigits && is_hexadecimal(rest);
  return is_id ? std::optional(kind) : std::nullopt;
}

/// Returns true for the name of a new index. A journal's owner or a recovery writes that file, and the
/// recovery of the journal removes it.
bool is_new_index(std::string_view rest) {
  const auto journal = without_secret(rest, kNewIndexSuffix);
  return journal && kind_of(*journal) == NameKind::Ordinary;
}

class Scan {
 public:
  Scan(Storage& storage, const std::filesystem::path& archive_path, const File& archive,
       const std::filesystem::path& own)
      : storage_(storage),
        archive_path_(archive_path),
        prefix_(journal_prefix(archive_path.filename().string())),
        archive_(archive),
        own_(own) {}

  Result<std::vector<FoundJournal>> all() {
    for (int rounds_left = kMostRounds;; --rounds_left) {
      bool has_vanished = false;
      auto found = one_round(rounds_left == 1, has_vanished);
      if (!found || !has_vanished || rounds_left == 1) return found;
    }
  }

  /// Judges the file again if the path still names it. The caller holds its lock.
  Result<bool> again(FoundJournal& found) {
    RETURN_IF_ERROR(look_at_archive());
    auto opened = found.file->status();
    RETURN_IF_ERROR(opened);
    auto is_there = is_at(storage_, found.report.path, *opened);
    if (!is_there || !*is_there) return is_there;
    found.is_in_use = false;
    found.record = {};
    *opened = without_staged_name(found, *opened);
    if (auto doubt = doubt_about(found, *opened)) {
      distrust(found, *kind_of(rest_of(found.report.path.filename().string())), std::move(*doubt));
      return true;
    }
    auto judged = judge(found, *kind_of(rest_of(found.report.path.filename().string())), *opened);
    RETURN_IF_ERROR(judged);
    return *judged;
  }

 private:
  [[nodiscard]] std::string_view rest_of(std::string_view name) const { return name.substr(prefix_.size()); }

  Result<void> look_at_archive() {
    auto stamp = stamp_of(archive_);
    RETURN_IF_ERROR(stamp);
    stamp_ = *stamp;
    auto status = strict_status_of(archive_);
    RETURN_IF_ERROR(status);
    status_ = *status;
    auto plain = archive_.status();
    RETURN_IF_ERROR(plain);
    mode_ = plain->mode;
    return {};
  }

  Result<std::vector<FoundJournal>> one_round(bool is_last, bool& has_vanished) {
    auto names = storage_.list(archive_path_.parent_path(), prefix_);
    if (!names && is_forbidden(names.error())) {
      return fail(ErrorCode::Unlistable, names.error().errno_value, std::move(names.error().message));
    }
    RETURN_IF_ERROR(names);
    std::vector<FoundJournal> found;
    std::erase(*names, own_.filename().string());
    std::erase_if(*names, [this](const std::string& name) { return is_new_index(rest_of(name)); });
    if (names->empty()) return found;
    std::ranges::sort(*names);
    RETURN_IF_ERROR(look_at_archive());
    strangers_.clear();  // the archive's mode may have changed
    group_records_.clear();
    in_vain_.clear();
    others_.reset();
    std::size_t ignored = 0;
    std::size_t last_ignored = 0;  // its place in `found`
    for (const std::string& name : *names) {
      FoundJournal journal;
      has_examples_ = ignored >= kMostIgnoredNames;
      journal.report.path = archive_path_.parent_path() / name;
      auto is_there = look_at(journal, name);
      if (!is_there && says_gone(is_there.error())) {
        // In the last round, a failure to read a writer's file that still exists is an error and does not
        // mean "gone". The names of strangers may appear and vanish all the time.
        if (is_last && is_of_writer_now(journal, name)) return pass_on(std::move(is_there));
        is_there = !journal.report.explanation.empty();
      }
      RETURN_IF_ERROR(is_there);
      has_vanished = has_vanished || !*is_there;
      if (!*is_there || journal.is_hidden) continue;
      if (journal.report.is_ignored && ++ignored > kMostIgnoredNames) continue;
      if (journal.report.is_ignored) last_ignored = found.size();
      found.push_back(std::move(journal));
    }
    if (ignored > kMostIgnoredNames) found[last_ignored].report.more_ignored = ignored - kMostIgnoredNames;
    std::ranges::stable_sort(found, {}, [](const FoundJournal& journal) { return journal.record.sequence; });
    return found;
  }

  static void set(FoundJournal& found, JournalState state, std::string why) {
    found.report.state = state;
    found.report.explanation = std::move(why);
  }
  static void ignore(FoundJournal& found, std::string why) {
    set(found, JournalState::Unknown, std::move(why));
    found.report.is_ignored = true;
  }
  static void block(FoundJournal& found, std::string why, std::string next_step) {
    set(found, JournalState::Unknown, std::move(why));
    found.report.blocks_commits = true;
    found.report.next_step = std::move(next_step);
  }

  /// Opens and judges one journal. False if the journal does not exist any more. A failed look is an error:
  /// skipping a committed journal would leave the archive torn.
  Result<bool> look_at(FoundJournal& found, const std::string& name) {
    const std::filesystem::path& path = found.report.path;
    const auto kind = kind_of(rest_of(name));
    if (!kind) {
      ignore(found, "its name is not a journal's name");
      return true;
    }
    auto named = storage_.status_of_name(path);
    if (!named && named.error().errno_value == EXDEV) {
      ignore(found, "another file system is mounted on it");
      return true;
    }
    RETURN_IF_ERROR(named);
    if (!may_be_of_writer(found, *kind, *named)) return true;
    auto file = storage_.open_no_link(path, Access::ReadWrite);
    if (!file && (is_forbidden(file.error()) || file.error().errno_value == EROFS)) {
      file = storage_.open_no_link(path, Access::ReadOnly);
      found.is_read_only = file.has_value();
    }
    if (!file) return explain_unopened(found, *kind, file.error());
    found.file = std::move(*file);
    auto opened = found.file->status();
    RETURN_IF_ERROR(opened);
    auto is_there = is_at(storage_, path, *opened);
    if (!is_there || !*is_there) return is_there;
    // Another file may have got the name since the status above.
    if (!may_be_of_writer(found, *kind, *opened)) return true;
    auto in_use = found.file->is_locked_by_other(kOwnerByte, LockKind::Shared);
    // Without locks, the owner's life can't be checked. The journal's writer was run with nolock.
    if (!in_use && !lacks_locks(in_use.error())) return pass_on(std::move(in_use));
    found.is_in_use = in_use && *in_use;
    found.identity = opened->identity;
    *opened = without_staged_name(found, *opened);
    auto doubt = doubt_about(found, *opened);
    if (doubt && !may_follow_access(found, *kind, *opened)) {
      found.is_in_use = false;  // a lock of any user does not make it a journal
      auto distrusted = distrust_unless_void(found, *kind, std::move(*doubt), opened->identity.size_bytes);
      found.file.reset();
      RETURN_IF_ERROR(distrusted);
      return true;
    }
    auto judged = judge(found, *kind, *opened);
    if (!found.is_in_use && found.report.state != JournalState::Committed) found.file.reset();
    return judged;
  }

  /// Returns true if the name exists again, with a file that a writer may have made. Explains any other file.
  bool is_of_writer_now(FoundJournal& found, const std::string& name) {
    const auto kind = kind_of(rest_of(name));
    const auto named = storage_.status_of_name(found.report.path);
    return kind && named && may_be_of_writer(found, *kind, *named);
  }

  /// Returns true if a writer of the archive may have made a file of this type and owner. Otherwise explains
  /// that and leaves the file closed.
  bool may_be_of_writer(FoundJournal& found, NameKind kind, const FileStatus& file) {
    if (has_examples_ && strangers_.contains(file.uid)) {
      found.file.reset();
      found.report.is_ignored = true;
      return false;
    }
    found.settlers = settlers_of(file);
    found.advice = settling_advice(file, storage_.user());
    found.uid = file.uid;
    if (const std::uint32_t type = file.mode & S_IFMT; type != S_IFREG) {
      found.file.reset();
      ignore(found, type == S_IFLNK   ? "a symbolic link"
                    : type == S_IFDIR ? "a directory"
                                      : "not a regular file");
      return false;
    }
    auto doubt = why_not_believed(storage_, file, -1, status_);
    if (!doubt || !doubt->is_of_stranger) return true;
    found.file.reset();
    if (may_have_right(file) && is_too_short(kind, file)) {
      ignore(found, doubt->why + ", and it is too short to hold a commit");
      found.report.next_step = "delete it";
      return false;
    }
    if (may_have_right(file)) {
      distrust(found, kind, std::move(*doubt));
      return false;
    }
    strangers_.insert(file.uid);
    ignore(found, doubt->why + ", so it is not read");
    found.report.next_step = fmt::format(
        "delete it, or if user {} wrote to the archive before its owner or its mode changed, give it to the "
        "archive's owner (chown) and run `stfs recover`",
        file.uid);
    return false;
  }

  /// Returns true if the file has no room for a record. A journal gets its name only after all of its bytes
  /// are on stable storage (journal.h, invariant 2): a file without a record is no commit of any user.
  static bool is_too_short(NameKind kind, const FileStatus& file) {
    if (kind == NameKind::Lanes) return file.identity.size_bytes < kLaneJournalBytes;
    return kind == NameKind::Ordinary && file.identity.size_bytes <= kHead.size_bytes;
  }

  /// Returns true if a stranger may have a right to the archive that this process can't see: as a user whom
  /// this user namespace lacks, by the access control list, or as a member of the group.
  [[nodiscard]] bool may_have_right(const FileStatus& file) const {
    if (is_of_many(storage_, file.uid)) return true;
    // If there is a list, the group's bits are its mask.
    if ((mode_ & S_IWGRP) == 0) return false;
    return has_access_list(archive_.descriptor()) ||
           membership_of(storage_, file.uid, status_.gid) == Membership::Unknown;
  }

  /// Returns true for a living owner's lane journal, although others may write it. A lane journal outlives
  /// its commit: when the archive's mode changes, the journal keeps the old mode until the owner's next
  /// commit. Recovery applies nothing of a journal while the owner lives.
  static bool may_follow_access(const FoundJournal& found, NameKind kind, const FileStatus& file) {
    return found.is_in_use && kind == NameKind::Lanes && file.links <= 1;
  }

  Result<bool> explain_unopened(FoundJournal& found, NameKind kind, const Error& why) {
    switch (why.errno_value) {
      case ELOOP: set(found, JournalState::Unknown, "a symbolic link"); return true;
      // This is a directory or a device: no writer has made it.
      case EISDIR:
      case EINVAL: set(found, JournalState::Unknown, why.message); return true;
      case EACCES:
      case EPERM: break;
      case EAGAIN:
        block(found, "can't be read: " + found.settlers + " holds a lease on it",
              "end the process that holds the lease, or try again in a minute");
        return true;
      default: return tl::unexpected(why);
    }
    auto at_path = storage_.status_of_name(found.report.path);
    RETURN_IF_ERROR(at_path);
    found.settlers = settlers_of(*at_path);
    found.advice = settling_advice(*at_path, storage_.user());
    if (kind == NameKind::Staged) {
      // A staged file promises nothing, and blocks no commit. This process can't see whether its owner lives,
      // so the file stays: a living owner would miss it when publishing it.
      set(found, JournalState::Unknown,
          "being staged, or left by a dead process: this process may not read it");
      return true;
    }
    block(found,
          fmt::format(
              "belongs to user {} and this process, of user {}, may not read it: a newer commit may be in it",
              at_path->uid, storage_.user()),
          found.advice);
    return true;
  }

  /// Returns the status without the link that is the journal's own staged name. GlusterFS renames a file in
  /// two steps, and may die between them: then the file has both names, and no other user has made either.
  [[nodiscard]] FileStatus without_staged_name(const FoundJournal& found, FileStatus opened) const {
    if (opened.links <= 1) return opened;
    std::string other = found.report.path.filename();
    if (other.ends_with(kStagedSuffix)) {
      other.resize(other.size() - kStagedSuffix.size());
    } else {
      other += kStagedSuffix;
    }
    const auto there = storage_.status_of_name(found.report.path.parent_path() / other);
    if (there && there->identity.same_file(opened.identity)) {
      --opened.links;
    } else if (const auto now = found.file->status()) {
      opened.links = now->links;  // the rename may be over
    }
    return opened;
  }

  [[nodiscard]] std::optional<Disbelief> doubt_about(const FoundJournal& found,
                                                     const FileStatus& opened) const {
    return why_not_believed(storage_, opened, found.file->descriptor(), status_);
  }

  /// Staged files and group records do not block commits: a staged file promises nothing, and a group record
  /// only decides about the journals that name it.
  static void distrust(FoundJournal& found, NameKind kind, Disbelief doubt) {
    std::string next_step =
        doubt.is_of_stranger
            ? disbelief_advice(found.uid)
            : "if you know that its owner has written it, remove its other names, give it the archive's "
              "mode, and run `stfs recover`; if it is deleted, its committed change is lost";
    if (kind == NameKind::Staged || kind == NameKind::Group) {
      set(found, JournalState::Unknown, std::move(doubt.why) + ": ignored");
      found.report.next_step = std::move(next_step);
    } else {
      block(found, std::move(doubt.why), std::move(next_step));
    }
  }

  /// A void journal of a user who may write the archive is removed, even if other users may write it: the
  /// archive's mode may have changed since. Its other bytes are not judged, because they may change again.
  Result<void> distrust_unless_void(FoundJournal& found, NameKind kind, Disbelief doubt,
                                    std::uint64_t size_bytes) {
    const bool is_journal = kind == NameKind::Ordinary || kind == NameKind::Lanes;
    if (is_journal && !doubt.is_of_stranger) {
      const bool has_lanes = kind == NameKind::Lanes && size_bytes >= kLaneHeads.end();
      auto heads =
          read_text(*found.file, has_lanes ? kLaneHeads : ByteRange{0, std::min(size_bytes, kBlockBytes)});
      RETURN_IF_ERROR(heads);
      if (heads->find_first_not_of('\0') == std::string::npos) {
        found.is_lane_journal = kind == NameKind::Lanes;
        found.is_void = true;
        set(found, JournalState::Unfinished, "made void by its owner or by a recovery");
        return {};
      }
    }
    distrust(found, kind, std::move(doubt));
    return {};
  }

  Result<bool> judge(FoundJournal& found, NameKind kind, const FileStatus& opened) {
    const JudgedArchive archive{storage_, archive_, stamp_, status_, group_records_, in_vain_};
    found.is_lane_journal = kind == NameKind::Lanes;
    Result<void> judged;
    switch (kind) {
      case NameKind::Ordinary: judged = judge_ordinary(archive, found, opened); break;
      case NameKind::Lanes: judged = judge_lanes(archive, found, opened); break;
      case NameKind::Group: judged = judge_group(found); break;
      case NameKind::Staged:
        set(found, found.is_in_use ? JournalState::InUse : JournalState::Unfinished,
            found.is_in_use ? "being staged" : "left by a process that died while staging");
    }
    RETURN_IF_ERROR(judged);
    return true;
  }

  /// A group record is younger than its journals, so the directory is listed after the record was found.
  Result<bool> has_journals(const File& group_record) {
    if (!others_) {
      auto listed = DirectoryNames::list(storage_, archive_path_.parent_path());
      RETURN_IF_ERROR(listed);
      others_ = std::move(*listed);
    }
    return stfs::has_journals(group_record, *others_);
  }

  Result<void> judge_group(FoundJournal& found) {
    auto rules = found.is_in_use ? Result<bool>(true) : has_journals(*found.file);
    if (!rules && rules.error().code == ErrorCode::InvalidArgument) {
      set(found, JournalState::Unknown, rules.error().message);
      return {};
    }
    RETURN_IF_ERROR(rules);
    // Hide a group record that is still in use: the reports of its journals are enough.
    found.is_hidden = *rules;
    if (!*rules) set(found, JournalState::Unfinished, "left by a transaction over several archives");
    return {};
  }

  Storage& storage_;
  const std::filesystem::path& archive_path_;
  const std::string prefix_;
  const File& archive_;
  const std::filesystem::path& own_;
  ArchiveStamp stamp_;
  FileStatus status_;
  std::uint32_t mode_ = 0;  // the archive's mode by stat(2)
  // Only for one round:
  std::set<std::uint32_t> strangers_;                           // users whose files are ignored
  bool has_examples_ = false;                                   // enough ignored files have a report
  std::set<std::string> group_records_;                         // JudgedArchive::group_records
  std::map<std::string, std::optional<GroupVerdict>> in_vain_;  // JudgedArchive::in_vain
  std::optional<DirectoryNames> others_;  // all names in the directory, once a group record was found
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

bool is_journal_name(std::string_view file_name) {
  const std::size_t mark = file_name.rfind(kJournalMark);
  if (!file_name.starts_with('.') || mark == std::string_view::npos) return false;
  const std::string_view rest = file_name.substr(mark + kJournalMark.size());
  return kind_of(rest).has_value() || is_new_index(rest);
}

Result<ArchiveStamp> stamp_of(const File& archive) {
  auto status = archive.status();
  RETURN_IF_ERROR(status);
  ArchiveStamp stamp{.device = status->identity.device,
                     .inode = status->identity.inode,
                     .birth_ns = status->birth_ns,
                     .size_bytes = status->identity.size_bytes};
  std::array<std::byte, kHeaderLengthBytes> first{};
  const std::span<std::byte> there(first.data(), std::min<std::uint64_t>(stamp.size_bytes, first.size()));
  RETURN_IF_ERROR(archive.read(there, 0));
  auto length = header_length(there, stamp.size_bytes);
  // An archive without a valid header matches no journal.
  if (!length) return stamp;
  auto text = read_text(archive, {kHeaderLengthBytes, *length});
  RETURN_IF_ERROR(text);
  stamp.header_size_bytes = *length;
  stamp.header_hash = XXH3_64bits(text->data(), text->size());
  return stamp;
}

Result<void> check_new_blocks(const File& file, const JournalRecord& record) {
  std::vector<std::byte> region;
  for (const JournalRange& range : record.ranges) {
    if (range.is_patch()) {
      RETURN_IF_ERROR(read_patch(file, range, region));
      continue;
    }
    auto hashes = hash_blocks(file, {range.journal_offset, range.archive.size_bytes});
    RETURN_IF_ERROR(hashes);
    if (*hashes != range.new_hashes) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  "damaged: the hash of a block of new bytes does not match");
    }
  }
  if (!record.index) return {};
  auto whole = has_new_index(file, *record.index);
  RETURN_IF_ERROR(whole);
  if (!*whole) return damaged("the hash of its new index does not match");
  return {};
}

Result<bool> is_void(const File& file, std::uint64_t size_bytes) {
  auto block = read_text(file, {0, std::min(size_bytes, kBlockBytes)});
  RETURN_IF_ERROR(block);
  return block->find_first_not_of('\0') == std::string::npos;
}

Result<bool> is_at(Storage& storage, const std::filesystem::path& path, const FileStatus& file) {
  auto at_path = storage.status(path);
  if (!at_path && at_path.error().errno_value == ENOENT) return false;
  RETURN_IF_ERROR(at_path);
  return at_path->identity.same_file(file.identity);
}

Result<std::vector<FoundJournal>> scan_journals(Storage& storage, const std::filesystem::path& archive_path,
                                                const File& archive, const std::filesystem::path& own) {
  return Scan(storage, archive_path, archive, own).all();
}

Result<bool> open_found(Storage& storage, FoundJournal& found) {
  if (found.file) return true;
  if (found.identity.inode == 0) return false;
  auto file =
      storage.open_no_link(found.report.path, found.is_read_only ? Access::ReadOnly : Access::ReadWrite);
  if (!file && says_gone(file.error())) return false;
  RETURN_IF_ERROR(file);
  auto opened = (*file)->status();
  if (!opened && says_gone(opened.error())) return false;
  RETURN_IF_ERROR(opened);
  if (!opened->identity.same_file(found.identity)) return false;
  found.file = std::move(*file);
  return true;
}

Result<bool> judge_again(Storage& storage, const std::filesystem::path& archive_path, const File& archive,
                         FoundJournal& found) {
  return Scan(storage, archive_path, archive, {}).again(found);
}

}  // namespace stfs
