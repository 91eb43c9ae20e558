// Recovers an archive beside a file that any program may have written, and compares the result with an
// oracle.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/archive/archive.h"
#include "core/format/header.h"
#include "core/journal/recovery.h"
#include "tests/fuzz/target.h"
#include "tests/support/journal_mutator.h"
#include "tests/support/journal_oracle.h"
#include "tests/support/journal_seeds.h"
#include "tests/support/memory_storage.h"

namespace stfs::test {
namespace {

using View = std::span<const std::byte>;

/// The bits of an input's last byte.
enum Setting : unsigned {
  kIsLaneJournal = 1,
  kIsForced = 2,
  kIsInUse = 4,   // its owner lives
  kIsStaged = 8,  // it has the name of one that is still being written
  kIsBadlyNamed = 16,
  kHasGroupRecord = 32,  // behind the journal, and then its size in two bytes
  kOwnerDies = 64,       // if it is in use: the owner dies while recovery waits
};
constexpr unsigned kSettings = 128;

const std::string kDirectory = "/models/";
const std::string kArchive = kDirectory + "m.safetensors";
const std::string kGroupRecord = kDirectory + std::string(kGroupRecordName);

struct Input {
  View journal;
  std::optional<View> group_record;
  unsigned setting = 0;
};

/// @param input  not empty.
Input split(View input) {
  Input parts{.journal = input.first(input.size() - 1),
              .group_record = {},
              .setting = std::to_integer<unsigned>(input.back())};
  if ((parts.setting & kHasGroupRecord) == 0 || parts.journal.size() < 2) return parts;
  const std::size_t left = parts.journal.size() - 2;
  const std::size_t size = std::min<std::size_t>(number_at(parts.journal, left), left);
  parts.group_record = parts.journal.subspan(left - size, size);
  parts.journal = parts.journal.first(left - size);
  return parts;
}

Bytes join(Bytes journal, const std::optional<Bytes>& group_record, unsigned setting) {
  if (group_record) {
    journal.insert(journal.end(), group_record->begin(), group_record->end());
    journal.resize(journal.size() + 2);
    put_number(journal, journal.size() - 2, group_record->size());
  }
  setting = group_record ? setting | kHasGroupRecord : setting & ~unsigned{kHasGroupRecord};
  journal.push_back(static_cast<std::byte>(setting));
  return journal;
}

std::string journal_name(unsigned setting) {
  std::string id = "0123456789abcdef0123456789abcdef";
  if ((setting & kIsBadlyNamed) != 0) id.back() = 'x';
  return ".m.safetensors.stj." + id + ((setting & kIsLaneJournal) != 0 ? ".standing" : "") +
         ((setting & kIsStaged) != 0 ? ".staged" : "");
}

Bytes make(Choices& choices) {
  const JournalSeed* drawn = &one_of(choices, journal_seeds());
  // Lane journals are large and take twice as long, so half of them are drawn again.
  if (drawn->is_lane_journal && choices.one_in(2)) drawn = &one_of(choices, journal_seeds());
  const JournalSeed& seed = *drawn;
  unsigned setting = seed.is_lane_journal ? kIsLaneJournal : 0U;
  if (choices.one_in(3)) setting |= kIsForced;
  if (choices.one_in(16)) setting |= kIsInUse;
  if (choices.one_in(2)) setting |= kOwnerDies;
  if (choices.one_in(64)) setting |= kIsStaged;
  if (choices.one_in(64)) setting |= kIsBadlyNamed;
  if (choices.one_in(64)) setting ^= kIsLaneJournal;
  Bytes journal;
  journal.reserve(seed.bytes.size() + kBlockBytes);  // what is put in seldom makes it move
  journal = seed.bytes;
  mutate_journal(journal, (setting & kIsLaneJournal) != 0, journal_scene().archive, choices);
  std::optional<Bytes> group_record;
  if (seed.is_part && !choices.one_in(4)) group_record = make_group_record(journal_name(setting), choices);
  return join(std::move(journal), group_record, setting);
}

void mutate(Bytes& input, Choices& choices) {
  if (input.size() < 2) {
    input = make(choices);
    return;
  }
  const Input parts = split(input);
  unsigned setting = parts.setting;
  if (choices.one_in(8)) setting = static_cast<unsigned>(choices.below(kSettings));
  Bytes journal(parts.journal.begin(), parts.journal.end());
  std::optional<Bytes> group_record;
  if (parts.group_record) group_record.emplace(parts.group_record->begin(), parts.group_record->end());
  if (choices.one_in(8)) group_record = make_group_record(journal_name(setting), choices);
  mutate_journal(journal, (setting & kIsLaneJournal) != 0, journal_scene().archive, choices);
  input = join(std::move(journal), group_record, setting);
}

/// One journal beside the archive, and the calls that both must survive.
class Execution {
 public:
  Execution(MemoryStorage& storage, const Input& input)
      : storage_(storage),
        path_(kDirectory + journal_name(input.setting)),
        group_record_(input.group_record),
        setting_(input.setting),
        is_sampled_(!input.journal.empty() && std::to_integer<unsigned>(input.journal.back()) % 8 == 0) {
    storage_.put_back(kArchive);
    storage_.put(path_, input.journal);
    if (group_record_) storage_.put(kGroupRecord, *group_record_);
    if (has(kIsInUse)) storage_.set_locked(path_);
    verdict_ = judge_journal(input.journal, {.archive = journal_scene().archive,
                                             .stamp = journal_scene().stamp,
                                             .is_lane_journal = has(kIsLaneJournal),
                                             .is_forced = has(kIsForced),
                                             .name = journal_name(input.setting),
                                             .group_record_name = std::string(kGroupRecordName),
                                             .group_record = group_record_});
    if (has(kIsStaged)) verdict_ = {.state = JournalState::Unfinished};
    if (has(kIsBadlyNamed)) verdict_ = {.state = JournalState::Unknown};
  }
  ~Execution() {
    for (const std::string& path : {path_, kGroupRecord}) {
      if (storage_.has(path)) static_cast<void>(storage_.remove(path));
    }
  }
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  FuzzOutcome judge() {
    std::string wrong = look();
    if (wrong.empty()) wrong = read();
    if (wrong.empty()) wrong = commit_beside();
    if (wrong.empty() && is_changed()) wrong = "the archive was changed before its recovery";
    if (wrong.empty()) wrong = has(kIsInUse) ? recover_beside_owner() : recover_it();
    return {outcome(), std::move(wrong)};
  }

 private:
  [[nodiscard]] bool has(Setting bit) const { return (setting_ & bit) != 0; }
  [[nodiscard]] bool is_changed() const { return storage_.writes(kArchive) != 0; }

  [[nodiscard]] std::string_view outcome() const {
    if (has(kIsInUse)) return "in use";
    if (verdict_.after && verdict_.is_part) return "applied as a part";
    if (verdict_.after) return verdict_.state == JournalState::Foreign ? "insisted" : "applied";
    return name_of(verdict_.state);
  }

  std::unique_ptr<File> open() { return std::move(*storage_.open(kArchive, Access::ReadWrite)); }

  /// Checks that a dry run gives the oracle's answer and changes nothing.
  std::string look() {
    const auto archive = open();
    const auto reports =
        recover(storage_, kArchive, *archive, {.is_dry_run = true, .is_forced = has(kIsForced)});
    if (!reports) return "looking fails: " + reports.error().message;
    if (reports->size() != 1) return fmt::format("{} journals were found", reports->size());
    const JournalReport& report = reports->front();
    if (report.action != JournalAction::None || !storage_.has(path_)) return "looking has done something";
    if (report.explanation.empty()) return "there is no explanation";
    if (has(kIsInUse)) return "";
    if (report.state != verdict_.state) {
      return fmt::format("it counts as {} ({}), and is {}", name_of(report.state), report.explanation,
                         name_of(verdict_.state));
    }
    return report.blocks_commits == verdict_.blocks_commits ? ""
                                                            : "it blocks commits and should not, or should";
  }

  /// Checks that a reader without write access sees the archive as it is after recovery.
  std::string read() {
    const bool is_pending = !has(kIsInUse) && verdict_.after && verdict_.state == JournalState::Committed;
    // Reads that come directly from the file are only checked in some executions.
    if (!is_pending && !is_sampled_) return "";
    const View due = is_pending ? View(*verdict_.after) : View(journal_scene().archive);
    const auto archive = Archive::open(kArchive, Access::ReadOnly, storage_);
    if (!archive) {
      const std::uint64_t length = number_at(due, 0);
      const bool has_header = length <= due.size() - kHeaderLengthBytes &&
                              parse_header({reinterpret_cast<const char*>(due.data()) + kHeaderLengthBytes,
                                            static_cast<std::size_t>(length)},
                                           due.size() - kHeaderLengthBytes - length);
      return has_header ? "a reader can't open it: " + archive.error().message : "";
    }
    const auto bytes = (*archive)->read({0, due.size()}, scratch_);
    if (!bytes) return "a reader can't read: " + bytes.error().message;
    return is_same(*bytes, due) ? "" : "a reader sees what is not to be there";
  }

  /// Checks the obstacle that a commit finds.
  std::string commit_beside() {
    const auto archive = open();
    const ByteRange locked{0, kBlockBytes};
    const auto obstacle = find_obstacle(storage_, kArchive, *archive, {&locked, 1});
    if (has(kIsInUse))
      // A lane journal has its full size from the beginning. A lane journal without bytes was therefore cut
      // while its owner used it.
      return obstacle || verdict_.blocks_commits || storage_.content(path_).empty()
                 ? ""
                 : "a living owner's journal stops commits";
    if (verdict_.blocks_commits) return obstacle ? "a commit beside it goes on" : "";
    if (!obstacle) return "a commit beside it fails: " + obstacle.error().message;
    const bool is_due = verdict_.state == JournalState::Committed;
    return is_due && *obstacle != Obstacle::DeadOwner ? "a commit does not recover it first" : "";
  }

  Result<std::vector<JournalReport>> recover_for_good() {
    return recover(storage_, kArchive, *open(), {.is_dry_run = false, .is_forced = has(kIsForced)});
  }

  /// Checks that the archive has its old bytes or the oracle's, and that only the right files are left.
  std::string recover_it() {
    const auto reports = recover_for_good();
    if (!reports) return "recovery fails: " + reports.error().message;
    if (!verdict_.after && is_changed()) return "the archive was changed";
    if (verdict_.after && !is_same(storage_.content(kArchive), *verdict_.after)) {
      return is_changed() ? "the archive is not what the journal says"
                          : "a committed journal was not applied";
    }
    const JournalAction due = verdict_.after                               ? JournalAction::Applied
                              : verdict_.state == JournalState::Unfinished ? JournalAction::Removed
                                                                           : JournalAction::None;
    if (reports->front().action != due) return "recovery says that it has done something else";
    const bool has_journal = due == JournalAction::None;
    if (storage_.has(path_) != has_journal) return "the journal is there, or is gone, by mistake";
    const bool has_group_record = group_record_ && !(verdict_.is_part && is_last());
    if (storage_.has(kGroupRecord) != has_group_record)
      return "the group record is there, or is gone, by mistake";
    const std::size_t files = 1U + (has_journal ? 1U : 0U) + (has_group_record ? 1U : 0U);
    return storage_.files() == files ? "" : "a file was left behind";
  }

  /// Returns true if none of the group record's journals exists any more.
  [[nodiscard]] bool is_last() const {
    const auto names = read_plain_group_record(*group_record_);
    return names && std::ranges::none_of(
                        *names, [this](const std::string& name) { return storage_.has(kDirectory + name); });
  }

  /// Checks that a living owner keeps the journal. If the owner dies while recovery waits, recovery does
  /// nothing, or the work that is due.
  std::string recover_beside_owner() {
    if (has(kOwnerDies)) storage_.set_locked(path_, 1);
    const auto reports = recover_for_good();
    // A forced recovery is told about the owner.
    const bool is_told = !reports && has(kIsForced) && reports.error().code == ErrorCode::Busy;
    if (!reports && !is_told) return "recovery fails: " + reports.error().message;
    const bool is_over = verdict_.after ? is_same(storage_.content(kArchive), *verdict_.after)
                                        : verdict_.state == JournalState::Unfinished && !is_changed();
    if (has(kOwnerDies) && is_over) return "";
    if (is_changed()) return "the archive was changed";
    return storage_.has(path_) ? "" : "an owner's journal was removed";
  }

  MemoryStorage& storage_;
  const std::string path_;
  const std::optional<View> group_record_;
  const unsigned setting_;
  const bool is_sampled_;
  JournalVerdict verdict_;
  static inline std::vector<std::byte> scratch_;
};

FuzzOutcome fuzz_one(View input) {
  if (input.empty()) return {"nothing"};
  static MemoryStorage storage;
  if (!storage.has(kArchive)) storage.put(kArchive, journal_scene().archive);
  return Execution(storage, split(input)).judge();
}

}  // namespace

const FuzzTarget& journal_target() {
  static constexpr FuzzShare shares[] = {
      // Damage must get past the hashes. Otherwise the code behind them is not tested.
      {"applied", 10}, {"insisted", 0.3}, {"applied as a part", 0.3},
      {"damaged", 1},  {"foreign", 1},    {"unfinished", 1},
      {"unknown", 1},  {"in use", 1},
  };
  static constexpr FuzzTarget target{"journal", shares, make, mutate, fuzz_one};
  return target;
}

}  // namespace stfs::test
