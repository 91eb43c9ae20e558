#include "tests/crash/hosts_run.h"

#include <algorithm>
#include <memory>
#include <ostream>

#include "core/journal/recovery.h"
#include "tests/crash/commit_log.h"
#include "tests/support/disk_crash.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/plain.h"
#include "tests/support/scheduler.h"

namespace stfs::test {
namespace {

constexpr unsigned kTries = 200;                   // of one commit, while others hold the locks
constexpr std::size_t kPowerLosses = 3;            // tried on each snapshot
constexpr unsigned kLongTurns = 200;               // more than a commit has calls
constexpr std::size_t kOneReaderAmongHosts = 4;    // one recovery in so many follows a reader
constexpr std::size_t kOneFollowUpAmongHosts = 8;  // one recovery in so many is followed by a commit
constexpr std::uint64_t kDevicesABoot = 16;        // each boot gives other device numbers

bool is_journal_sync(const SeamCall& call) {
  return call.kind == FileCall::Sync && call.role == FileRole::Journal;
}

/// True for the calls of a scan of journals.
bool is_look(const SeamCall& call) {
  switch (call.kind) {
    case FileCall::List: return true;
    case FileCall::Open:
    case FileCall::PathStatus:
    case FileCall::Read:
    case FileCall::Status:
    case FileCall::TestLock: return call.role == FileRole::Journal;
    default: return false;
  }
}

class HostsRun {
 public:
  HostsRun(const HostsScenario& scenario, std::uint64_t seed, HostsCounts& counts, std::ostream* trace)
      : scenario_(scenario), counts_(counts), trace_(trace), choices_(seed) {}

  std::optional<std::string> run() {
    ++counts_.schedules;
    disk_ = std::make_unique<DiskModel>(scenario_.disk);
    const InodeNumber inode = disk_->put(kArchivePath, small_archive().content(), scenario_.archive);
    for (const std::string_view path : scenario_.paths) {
      if (path != kArchivePath) disk_->link(inode, path);
    }
    if (scenario_.begins_with_journal) leave_journal();
    for (boot_ = 0; boot_ < scenario_.boots && !wrong_; ++boot_) {
      if (boot_ > 0) start_again();
      work();
      judge();
    }
    return wrong_;
  }

 private:
  struct Snapshot {
    DiskImage image;
    CommitLog log;
    std::uint64_t call;
  };

  /// Changes turns, fails calls, kills and takes snapshots at each call of one process.
  class Turn final : public Interceptor {
   public:
    Turn(HostsRun& run, DiskProcess& process) : run_(run), process_(process) {}
    Verdict before(const SeamCall& call) override {
      Scheduler::pause();
      ++run_.calls_;
      run_.tell(process_, std::string(name_of(call.kind)) + " of the " + std::string(name_of(call.role)));
      run_.at_call(process_, call);
      run_.dawdle(call);
      const bool is_lie = std::ranges::any_of(run_.scenario_.lies, [&](const SeamCall& lie) {
        return lie.kind == call.kind && lie.role == call.role;
      });
      if (is_lie) return {.kind = Verdict::Kind::Lie};
      return run_.fails(process_, call);
    }

   private:
    HostsRun& run_;
    DiskProcess& process_;
  };

  template <class T>
  const T& one_of(const std::vector<T>& list) {
    return list[choices_.below(list.size())];
  }

  std::unique_ptr<DiskProcess> start_process(DiskModel& disk, std::size_t boot,
                                             Access access = Access::ReadWrite) {
    DiskMount mount = one_of(scenario_.mounts);
    mount.boot.id[1] = static_cast<std::uint8_t>(boot);
    mount.device += boot * kDevicesABoot;
    const bool is_onlooker = access == Access::ReadOnly && !scenario_.onlookers.empty();
    return disk.start_process(one_of(is_onlooker ? scenario_.onlookers : scenario_.users), mount);
  }

  void tell(const DiskProcess& process, const std::string& what) {
    if (trace_ != nullptr) *trace_ << calls_ << " " << process.id() << ": " << what << "\n";
  }

  void at_call(DiskProcess& process, const SeamCall& call) {
    if (choices_.one_in(scenario_.snapshots_one_in)) snapshots_.push_back({disk_->image(), log_, calls_});
    if (scenario_.kills_one_in == 0 || process.is_dead()) return;
    if (scenario_.dies_in_syncs && !is_journal_sync(call)) return;
    if (!choices_.one_in(scenario_.kills_one_in)) return;
    ++counts_.kills;
    tell(process, "killed");
    process.kill();
  }

  Verdict fails(const DiskProcess& process, const SeamCall& call) {
    if (scenario_.fails_one_in == 0 || !is_look(call)) return {};
    if (process.is_dead() || !choices_.one_in(scenario_.fails_one_in)) return {};
    tell(process, "that fails");
    static const std::vector<int> kReasons = {EIO, EMFILE, ENOMEM};
    return {.kind = Verdict::Kind::Fail, .errno_value = one_of(kReasons)};
  }

  void dawdle(const SeamCall& call) {
    const bool may_take_long =
        (scenario_.dawdles && is_journal_sync(call)) ||
        (scenario_.dawdles_at_end && call.kind == FileCall::Sync && call.role == FileRole::Archive);
    if (may_take_long && choices_.one_in(4)) rest();
  }

  static void rest() {
    for (unsigned turn = 0; turn < kLongTurns; ++turn) Scheduler::pause();
  }

  /// Runs all writers, readers and openers concurrently until they have ended.
  void work() {
    Scheduler scheduler(choices_, 1 + choices_.below(6));
    patience_ = std::chrono::seconds(choices_.one_in(2) ? 0 : 10);
    for (std::size_t writer = 0; writer < scenario_.writers; ++writer) {
      scheduler.add([this, writer] { write(writer); });
    }
    for (std::size_t reader = 0; reader < scenario_.readers; ++reader)
      scheduler.add([this] { read(Access::ReadOnly); });
    for (std::size_t opener = 0; opener < scenario_.openers; ++opener)
      scheduler.add([this] { read(Access::ReadWrite); });
    scheduler.run();
  }

  /// Continues on the disk that a loss of power at an earlier moment has left.
  void start_again() {
    if (snapshots_.empty()) snapshots_.push_back({disk_->image(), log_, calls_});
    Snapshot& there = snapshots_[choices_.below(snapshots_.size())];
    log_ = there.log;
    lose_power(log_, there.image);
    const DiskImage left = after_random_power_loss(there.image, choices_, scenario_.disk.has_stale_blocks);
    snapshots_.clear();
    disk_ = std::make_unique<DiskModel>(scenario_.disk, left);
  }

  static void lose_power(CommitLog& log, const DiskImage& image) {
    const InodeNumber inode = image.inode_at(kArchivePath);
    std::vector<std::size_t> settled;
    for (std::size_t slot = 0; slot < slots().size(); ++slot) {
      const ByteRange bytes = bytes_of(slots()[slot]);
      bool is_settled = true;
      for (std::uint64_t at = bytes.offset / kDiskBlockBytes; at * kDiskBlockBytes < bytes.end(); ++at) {
        is_settled = is_settled && image.at(inode).blocks[at].versions() == 1;
      }
      if (is_settled) settled.push_back(slot);
    }
    log.lose_power(image.content(inode), settled);
  }

  std::vector<std::size_t> pick_slots(std::size_t writer) {
    const std::size_t count = scenario_.slots == 0 ? slots().size() : scenario_.slots;
    std::vector<std::size_t> picked;
    while (picked.empty()) {
      const std::size_t density = 2 + choices_.below(4);
      for (std::size_t slot = 0; slot < count; ++slot) {
        const bool is_mine = !scenario_.each_its_own || slot % scenario_.writers == writer;
        if (is_mine && choices_.one_in(density)) picked.push_back(slot);
      }
    }
    return picked;
  }

  Step step_of(const std::vector<std::size_t>& picked) {
    Step step{.pieces = {}, .is_patch = choices_.one_in(3)};
    for (const std::size_t slot : picked) step.pieces.push_back(slots()[slot]);
    return step;
  }

  /// A process commits, and is killed at its first write to the archive.
  void leave_journal() {
    class Killer final : public Interceptor {
     public:
      explicit Killer(DiskProcess& process) : process_(process) {}
      Verdict before(const SeamCall& call) override {
        if (call.role == FileRole::Archive && call.kind == FileCall::Write) process_.kill();
        return {};
      }

     private:
      DiskProcess& process_;
    };
    const auto process = start_process(*disk_, 0);
    Killer killer(*process);
    InterceptedStorage storage(*process, killer);
    const CommitOptions options = commit_options(one_of(scenario_.durabilities));
    const std::vector<std::size_t> picked = pick_slots(0);
    const std::size_t number = log_.begin(picked, options.durability);
    Writer archive(storage, small_archive(), options, scenario_.keeps_journal, one_of(scenario_.paths));
    static_cast<void>(archive.run(step_of(picked), number));
    if (!process->is_dead()) wrong_ = "nobody dies behind the commit point";
    log_.end(number, LoggedCommit::Fate::Done);
  }

  void write(std::size_t writer) {
    std::size_t commits_left = scenario_.commits;
    while (commits_left > 0 && !wrong_) {
      const auto process = start_process(*disk_, boot_);
      Turn turn(*this, *process);
      InterceptedStorage storage(*process, turn);
      CommitOptions options = commit_options(one_of(scenario_.durabilities));
      options.lock_patience = patience_;
      Writer archive(storage, small_archive(), options, scenario_.keeps_journal, one_of(scenario_.paths));
      while (commits_left > 0 && !process->is_dead() && !wrong_) {
        --commits_left;
        commit(archive, *process, writer, options.durability);
      }
      if (scenario_.dawdles && process->is_dead()) rest();
    }
  }

  void commit(Writer& archive, DiskProcess& process, std::size_t writer, Durability durability) {
    const std::vector<std::size_t> picked = pick_slots(writer);
    Step step = step_of(picked);
    const std::size_t number = log_.begin(picked, durability);
    let_in(archive, process, step, writer, durability);
    tell(process, "begins commit " + std::to_string(number) + " of " + std::to_string(picked.size()) +
                      " slots from " + std::to_string(picked.front()));
    Result<void> done;
    for (unsigned tries = 0; tries < kTries; ++tries) {
      done = archive.run(step, number);
      if (done || process.is_dead()) break;
      if (done.error().code != ErrorCode::Busy) break;
      ++counts_.refused;
    }
    // A mount settles its journal when it has no commits for a while.
    const bool is_settled = done && choices_.one_in(3) && archive.settle();
    if (done) {
      ++counts_.commits;
      tell(process, "has committed " + std::to_string(number));
      log_.end(number, LoggedCommit::Fate::Done);
      if (is_settled && scenario_.has_stranger) write_as_stranger();
      return;
    }
    if (!process.is_dead()) {
      tell(process, "can't commit " + std::to_string(number) + ": " + text_of(done.error()));
      if (!is_expected(done.error()))
        wrong_ = "commit " + std::to_string(number) + ": " + text_of(done.error());
    }
    const bool is_unknown =
        process.is_dead() || done.error().code == ErrorCode::CommitUnknown || archive.has_stopped();
    log_.end(number, is_unknown ? LoggedCommit::Fate::Unknown : LoggedCommit::Fate::Refused);
    if (!process.is_dead()) archive.close();
  }

  /// Sometimes lets another commit of the same writer run inside of the step's commit.
  void let_in(Writer& archive, DiskProcess& process, Step& step, std::size_t writer, Durability durability) {
    const auto blocks_of = [](const Piece& piece) {
      const ByteRange bytes = bytes_of(piece);
      const std::uint64_t begin = round_down_to_block(bytes.offset);
      return ByteRange{begin, round_up_to_block(bytes.end()) - begin};
    };
    if (step.is_patch || !choices_.one_in(2)) return;
    const std::vector<std::size_t> inner = {pick_slots(writer).front()};
    step.beside = {slots()[inner.front()]};
    step.beside_when = static_cast<Lent>(choices_.below(3));
    const auto is_shared = [&](const Piece& piece) {
      return blocks_of(piece).overlaps(blocks_of(step.beside.front()));
    };
    if (std::ranges::any_of(step.pieces, is_shared)) step.beside.clear();
    auto number = std::make_shared<std::size_t>(0);
    archive.note_beside(
        {.begins =
             [this, number, inner, durability, &process] {
               *number = log_.begin(inner, durability);
               tell(process, "begins commit " + std::to_string(*number) + " inside");
               return *number;
             },
         .ends =
             [this, number, &archive, &process](const Result<void>& done) {
               tell(process, done ? "has committed " + std::to_string(*number)
                                  : "can't commit " + std::to_string(*number) + ": " + text_of(done.error()));
               if (!done && !process.is_dead() && !is_expected(done.error()))
                 wrong_ = "commit " + std::to_string(*number) + " inside: " + text_of(done.error());
               const bool is_unknown = process.is_dead() || archive.has_stopped() ||
                                       (!done && done.error().code == ErrorCode::CommitUnknown);
               log_.end(*number, done         ? LoggedCommit::Fate::Done
                                 : is_unknown ? LoggedCommit::Fate::Unknown
                                              : LoggedCommit::Fate::Refused);
             }});
  }

  /// Writes as `dd conv=notrunc` does. The only writer has settled, so no journal will be applied over the
  /// bytes.
  void write_as_stranger() {
    const std::size_t slot = pick_slots(0).front();
    const std::size_t number = log_.begin({slot}, Durability::Process);
    const auto process = start_process(*disk_, boot_);
    const auto file = process->open(kArchivePath, Access::ReadWrite);
    const Content bytes = piece_bytes(small_archive(), slots()[slot], number);
    const auto written = (*file)->write(bytes, bytes_of(slots()[slot]).offset);
    if (!written) wrong_ = "a stranger can't write: " + text_of(written.error());
    log_.end(number, LoggedCommit::Fate::Done);
  }

  bool is_expected(const Error& error) {
    if (error.code == ErrorCode::Busy) return true;
    const int why = error.errno_value;
    const bool has_failed = scenario_.fails_one_in != 0 && (why == EIO || why == EMFILE || why == ENOMEM);
    const bool is_refused = scenario_.are_refused && (why == EPERM || why == EMLINK);
    if (has_failed || is_refused) ++counts_.refused;
    return has_failed || is_refused;
  }

  /// Opens the archive, reads several times, and closes it. Reads beside writers promise nothing. Without
  /// writers a reader sees the committed content: after its own recovery if it opened the archive for
  /// writing, else from the journal, as long as no other process recovers.
  void read(Access access) {
    const bool is_promised =
        scenario_.writers == 0 && (access == Access::ReadWrite || scenario_.openers == 0);
    for (std::size_t times = 0; times < scenario_.commits && !wrong_; ++times) {
      const auto process = start_process(*disk_, boot_, access);
      Turn turn(*this, *process);
      InterceptedStorage storage(*process, turn);
      auto archive = Archive::open(one_of(scenario_.paths), access, storage);
      if (process->is_dead()) continue;
      if (!archive) {
        tell(*process, "can't open: " + text_of(archive.error()));
        if (archive.error().code == ErrorCode::Busy || !is_expected(archive.error()))
          wrong_ = "a reader can't open: " + text_of(archive.error());
        continue;
      }
      std::vector<std::byte> scratch;
      for (std::size_t stays = choices_.below(30); stays-- > 0;) {
        const auto bytes = (*archive)->read({0, small_archive().content().size()}, scratch);
        if (!bytes && !process->is_dead() && !is_expected(bytes.error()))
          wrong_ = "a reader can't read: " + text_of(bytes.error());
        if (!bytes || !is_promised) continue;
        ++counts_.looks;
        if (auto wrong = log_.explain({bytes->begin(), bytes->end()}))
          wrong_ = "A READER sees what is " + *wrong;
      }
    }
  }

  void judge() {
    if (wrong_) return;
    if (disk_->has_locks_held()) {
      wrong_ = "a lock is held after everybody has gone";
      return;
    }
    check(disk_->image(), log_, boot_, "at the end");
    for (const auto& [image, log, call] : snapshots_) {
      for (std::size_t times = 0; times < kPowerLosses && !wrong_; ++times) {
        ++counts_.power_losses;
        CommitLog lost = log;
        lose_power(lost, image);
        check(after_random_power_loss(image, choices_, scenario_.disk.has_stale_blocks), lost, boot_ + 1,
              "power lost at call " + std::to_string(call));
      }
    }
  }

  /// Checks the content before recovery and after it, and the next commit.
  void check(const DiskImage& image, const CommitLog& log, std::size_t boot, const std::string& when) {
    if (wrong_) return;
    DiskModel disk(scenario_.disk, after_kill(image));
    if (choices_.one_in(kOneReaderAmongHosts)) look(disk, log, boot);
    std::vector<JournalReport> reports;
    std::vector<std::string_view> paths = scenario_.paths;
    std::ranges::rotate(paths, paths.begin() + static_cast<std::ptrdiff_t>(choices_.below(paths.size())));
    for (const std::string_view path : paths) {
      if (!wrong_) recover_all(disk, path, boot, reports);
    }
    const DiskImage after = disk.image();
    const auto anybody = disk.start_process();
    if (!wrong_) wrong_ = log.explain(after.content(after.inode_at(kArchivePath)));
    const auto left = anybody->list(kDirectory, ".");
    for (const std::string& name : *left) {
      if (!wrong_ && !may_stay(name, reports)) wrong_ = "LEFT BEHIND: " + name;
    }
    if (!wrong_ && choices_.one_in(kOneFollowUpAmongHosts)) follow_up(disk, boot);
    if (!wrong_) return;
    wrong_ = when + ": " + *wrong_;
    for (const JournalReport& report : reports) {
      *wrong_ += "; " + report.path.filename().string() + " was " + std::string(name_of(report.state)) +
                 " (" + report.explanation + "), " + std::to_string(report.ranges) + " ranges" +
                 (report.action == JournalAction::Applied ? ", applied" : "");
    }
  }

  /// Without unnamed files, a staged journal of a killed process stays: only its maker can read it, and it
  /// blocks no commit.
  static bool may_stay(const std::string& name, const std::vector<JournalReport>& reports) {
    return name.ends_with(kStagedSuffix) && std::ranges::any_of(reports, [&](const JournalReport& report) {
             return report.path.filename() == name && report.state == JournalState::Unknown &&
                    !report.blocks_commits;
           });
  }

  void recover_all(DiskModel& disk, std::string_view path, std::size_t boot,
                   std::vector<JournalReport>& reports) {
    const auto process = start_process(disk, boot);
    auto file = process->open(path, Access::ReadWrite);
    auto recovered = file ? recover(*process, path, **file)
                          : Result<std::vector<JournalReport>>(tl::unexpected(file.error()));
    if (!recovered) {
      wrong_ = "recovery fails: " + text_of(recovered.error());
      return;
    }
    std::ranges::move(*recovered, std::back_inserter(reports));
  }

  /// A reader without write access sees the committed content before recovery.
  void look(DiskModel& disk, const CommitLog& log, std::size_t boot) {
    const auto process = start_process(disk, boot, Access::ReadOnly);
    // Reads without a map, because making a map takes time.
    const auto archive = Archive::open(one_of(scenario_.paths), Access::ReadOnly, *process, Io::Pread);
    std::vector<std::byte> scratch;
    const auto bytes = archive ? (*archive)->read({0, small_archive().content().size()}, scratch)
                               : Result<std::span<const std::byte>>(tl::unexpected(archive.error()));
    if (!bytes) {
      wrong_ = "a reader can't read: " + text_of(bytes.error());
    } else if (auto wrong = log.explain({bytes->begin(), bytes->end()})) {
      wrong_ = "A READER sees what is " + *wrong;
    } else {
      ++counts_.looks;
    }
  }

  /// The archive takes the next commit.
  void follow_up(DiskModel& disk, std::size_t boot) {
    if (scenario_.are_refused) return;
    const DiskImage before = disk.image();
    const Content content = before.content(before.inode_at(kArchivePath));
    const Step step = step_of({choices_.below(slots().size())});
    constexpr std::uint64_t kNumber = 7777;
    const auto process = start_process(disk, boot);
    Writer writer(*process, small_archive(), commit_options(one_of(scenario_.durabilities)),
                  scenario_.keeps_journal, one_of(scenario_.paths));
    if (auto committed = writer.run(step, kNumber); !committed) {
      wrong_ = "NEXT COMMIT: " + text_of(committed.error());
      return;
    }
    const DiskImage after = disk.image();
    const Content expected = content_after(small_archive(), content, step, kNumber);
    if (!after.has_content(after.inode_at(kArchivePath), expected)) wrong_ = "NEXT COMMIT: it is not there";
  }

  const HostsScenario& scenario_;
  HostsCounts& counts_;
  std::ostream* const trace_;
  RandomChoices choices_;
  std::unique_ptr<DiskModel> disk_;
  std::size_t boot_ = 0;
  std::chrono::milliseconds patience_{0};
  CommitLog log_;
  std::vector<Snapshot> snapshots_;
  std::uint64_t calls_ = 0;
  std::optional<std::string> wrong_;
};

}  // namespace

HostsCounts& HostsCounts::operator+=(const HostsCounts& other) {
  schedules += other.schedules;
  commits += other.commits;
  refused += other.refused;
  kills += other.kills;
  power_losses += other.power_losses;
  looks += other.looks;
  return *this;
}

std::optional<std::string> run_hosts(const HostsScenario& scenario, std::uint64_t seed, HostsCounts& counts,
                                     std::ostream* trace) {
  return HostsRun(scenario, seed, counts, trace).run();
}

}  // namespace stfs::test
