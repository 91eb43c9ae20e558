// Recovery beside a file that anybody may have written, compared with what the oracle says of it.
#include <fmt/format.h>

#include <optional>

#include "core/archive.h"
#include "core/header.h"
#include "core/recovery.h"
#include "tests/fuzz/target.h"
#include "tests/support/journal_mutator.h"
#include "tests/support/journal_oracle.h"
#include "tests/support/journal_seeds.h"
#include "tests/support/memory_storage.h"

namespace stfs::test {
namespace {

using View = std::span<const std::byte>;

/// What the last byte of an input says: the bits of a number.
enum Setting : unsigned {
  kIsStanding = 1,
  kIsForced = 2,
  kIsInUse = 4,   // its owner lives
  kIsStaged = 8,  // it has the name of one that is still being written
  kIsBadlyNamed = 16,
};

const std::string kDirectory = "/models";
const std::string kArchive = kDirectory + "/m.safetensors";

std::string journal_path(unsigned setting) {
  const std::string name = kDirectory + "/.m.safetensors.stj.";
  std::string id = "0123456789abcdef0123456789abcdef";
  if ((setting & kIsBadlyNamed) != 0) id.back() = 'x';
  return name + id + ((setting & kIsStanding) != 0 ? ".standing" : "") +
         ((setting & kIsStaged) != 0 ? ".staged" : "");
}

Bytes make(Choices& choices) {
  const JournalSeed* drawn = &one_of(choices, journal_seeds());
  // Standing ones are large, and take twice as long.
  if (drawn->is_standing && choices.one_in(2)) drawn = &one_of(choices, journal_seeds());
  const JournalSeed& seed = *drawn;
  unsigned setting = seed.is_standing ? kIsStanding : 0U;
  if (choices.one_in(3)) setting |= kIsForced;
  if (choices.one_in(16)) setting |= kIsInUse;
  if (choices.one_in(64)) setting |= kIsStaged;
  if (choices.one_in(64)) setting |= kIsBadlyNamed;
  if (choices.one_in(64)) setting ^= kIsStanding;
  Bytes input;
  input.reserve(seed.bytes.size() + kBlockBytes);  // what is put in seldom makes it move
  input = seed.bytes;
  mutate_journal(input, (setting & kIsStanding) != 0, journal_scene().archive, choices);
  input.push_back(static_cast<std::byte>(setting));
  return input;
}

void mutate(Bytes& input, Choices& choices) {
  if (input.size() < 2) {
    input = make(choices);
    return;
  }
  const std::byte setting = choices.one_in(8) ? static_cast<std::byte>(choices.below(32)) : input.back();
  input.pop_back();
  mutate_journal(input, (std::to_integer<unsigned>(setting) & kIsStanding) != 0, journal_scene().archive,
                 choices);
  input.push_back(setting);
}

/// One journal beside the archive, and all that may happen to both.
class Execution {
 public:
  Execution(MemoryStorage& storage, unsigned setting, View journal)
      : storage_(storage),
        path_(journal_path(setting)),
        setting_(setting),
        is_sampled_(!journal.empty() && std::to_integer<unsigned>(journal.back()) % 8 == 0) {
    storage_.put_back(kArchive);
    storage_.put(path_, journal);
    storage_.set_locked(path_, has(kIsInUse));
    verdict_ = judge_journal(journal, {.archive = journal_scene().archive,
                                       .stamp = journal_scene().stamp,
                                       .is_standing = has(kIsStanding),
                                       .is_forced = has(kIsForced)});
    if (has(kIsStaged)) verdict_ = {.state = JournalState::Unfinished};
    if (has(kIsBadlyNamed)) verdict_ = {.state = JournalState::Unknown};
    // Nobody but its owner does anything about it.
    if (has(kIsInUse)) verdict_.after.reset();
  }
  ~Execution() {
    if (storage_.has(path_)) static_cast<void>(storage_.remove(path_));
  }
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  FuzzOutcome judge() {
    std::string wrong = look();
    if (wrong.empty()) wrong = read();
    if (wrong.empty()) wrong = commit_beside();
    if (wrong.empty() && is_changed()) wrong = "the archive was changed before its recovery";
    if (wrong.empty()) wrong = recover_it();
    if (verdict_.after)
      return {verdict_.state == JournalState::Foreign ? "insisted" : "applied", std::move(wrong)};
    return {has(kIsInUse) ? "in use" : name_of(verdict_.state), std::move(wrong)};
  }

 private:
  [[nodiscard]] bool has(Setting bit) const { return (setting_ & bit) != 0; }
  [[nodiscard]] bool is_changed() const { return storage_.writes(kArchive) != 0; }

  std::unique_ptr<File> open() { return std::move(*storage_.open(kArchive, Access::ReadWrite)); }

  /// Looking at it comes to the same as the oracle, and changes nothing.
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

  /// Who may only read sees the archive as it will be after its recovery.
  std::string read() {
    const bool is_pending = verdict_.after && verdict_.state == JournalState::Committed;
    // What comes straight from the file needs no look each time.
    if (!is_pending && !is_sampled_) return "";
    const View due = is_pending ? View(*verdict_.after) : View(journal_scene().archive);
    const auto archive = Archive::open(kArchive, Access::ReadOnly, storage_);
    if (!archive) {
      const std::uint64_t length = number_at(due, 0);
      const bool has_header =
          length <= due.size() - kHeaderLengthBytes &&
          parse_header({reinterpret_cast<const char*>(due.data()) + kHeaderLengthBytes,  // NOLINT
                        static_cast<std::size_t>(length)},
                       due.size() - kHeaderLengthBytes - length);
      return has_header ? "a reader can't open it: " + archive.error().message : "";
    }
    const auto bytes = (*archive)->read({0, due.size()}, scratch_);
    if (!bytes) return "a reader can't read: " + bytes.error().message;
    return is_same(*bytes, due) ? "" : "a reader sees what is not to be there";
  }

  /// What a commit is told about it.
  std::string commit_beside() {
    const auto archive = open();
    const ByteRange locked{0, kBlockBytes};
    const auto obstacle = find_obstacle(storage_, kArchive, *archive, {&locked, 1});
    if (has(kIsInUse))
      return obstacle || verdict_.blocks_commits ? "" : "a living owner's journal stops commits";
    if (verdict_.blocks_commits) return obstacle ? "a commit beside it goes on" : "";
    if (!obstacle) return "a commit beside it fails: " + obstacle.error().message;
    const bool is_due = verdict_.state == JournalState::Committed;
    return is_due && *obstacle != Obstacle::DeadOwner ? "a commit does not recover it first" : "";
  }

  /// The archive is as it was, or as the oracle says; what is left of the journal is what must be left.
  std::string recover_it() {
    const auto archive = open();
    const auto reports =
        recover(storage_, kArchive, *archive, {.is_dry_run = false, .is_forced = has(kIsForced)});
    if (!reports && has(kIsInUse) && has(kIsForced) && reports.error().code == ErrorCode::Busy) {
      return is_changed() ? "the archive was changed" : "";  // who insists is told of the owner
    }
    if (!reports) return "recovery fails: " + reports.error().message;
    const JournalAction action = reports->front().action;
    if (!verdict_.after && is_changed()) return "the archive was changed";
    if (verdict_.after && !is_same(storage_.content(kArchive), *verdict_.after)) {
      return is_changed() ? "the archive is not what the journal says"
                          : "a committed journal was not applied";
    }
    const bool is_removed = !has(kIsInUse) && verdict_.state == JournalState::Unfinished;
    const JournalAction due = verdict_.after ? JournalAction::Applied
                              : is_removed   ? JournalAction::Removed
                                             : JournalAction::None;
    if (action != due) return "recovery says that it has done something else";
    if (storage_.has(path_) != (due == JournalAction::None))
      return "the journal is there, or is gone, by mistake";
    return storage_.files() == (due == JournalAction::None ? 2U : 1U) ? "" : "a file was left behind";
  }

  MemoryStorage& storage_;
  const std::string path_;
  const unsigned setting_;
  const bool is_sampled_;
  JournalVerdict verdict_;
  static inline std::vector<std::byte> scratch_;
};

FuzzOutcome fuzz_one(View input) {
  if (input.empty()) return {"nothing"};
  static MemoryStorage storage;
  if (!storage.has(kArchive)) storage.put(kArchive, journal_scene().archive);
  const auto setting = std::to_integer<unsigned>(input.back());
  return Execution(storage, setting, input.first(input.size() - 1)).judge();
}

}  // namespace

const FuzzTarget& journal_target() {
  static constexpr FuzzTarget target{"journal", make, mutate, fuzz_one};
  return target;
}

}  // namespace stfs::test
