// Actors, kills, and the end of a schedule.
#include "tests/crash/hosts_run.h"

#include <algorithm>
#include <memory>
#include <ostream>

#include "core/recovery.h"
#include "tests/crash/commit_log.h"
#include "tests/support/disk_crash.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/scheduler.h"

namespace stfs::test {
namespace {

constexpr unsigned kTries = 200;         // of one commit, while others hold the locks
constexpr std::size_t kPowerLosses = 3;  // tried on each snapshot
constexpr unsigned kLongTurns = 200;     // a commit has fewer calls

std::string text_of(const Error& error) {
  return std::string(name_of(error.code)) + ": " + error.message;
}

class HostsRun {
 public:
  HostsRun(const HostsScenario& scenario, std::uint64_t seed, HostsCounts& counts, std::ostream* trace)
      : scenario_(scenario), counts_(counts), trace_(trace), choices_(seed), disk_(scenario.disk) {}

  std::optional<std::string> run() {
    ++counts_.schedules;
    put_archive(disk_);
    {
      Scheduler scheduler(choices_, 1 + choices_.below(6));
      patience_ = std::chrono::seconds(choices_.one_in(2) ? 0 : 10);
      for (std::size_t writer = 0; writer < scenario_.writers; ++writer) {
        scheduler.add([this, writer] { write(writer); });
      }
      for (std::size_t reader = 0; reader < scenario_.readers; ++reader) scheduler.add([this] { read(); });
      scheduler.run();
    }
    if (wrong_) return wrong_;
    if (disk_.has_locks_held()) return "a lock is held after everybody has gone";
    check(disk_.image(), log_, "at the end");
    for (const auto& [image, log, call] : snapshots_) {
      for (std::size_t times = 0; times < kPowerLosses && !wrong_; ++times) {
        ++counts_.power_losses;
        check(after_random_power_loss(image, choices_), log, "power lost at call " + std::to_string(call));
      }
    }
    return wrong_;
  }

 private:
  struct Snapshot {
    DiskImage image;
    CommitLog log;
    std::uint64_t call;
  };

  /// Turns, kills and snapshots, at each call of one process.
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
      return {.kind = is_lie ? Verdict::Kind::Lie : Verdict::Kind::Pass};
    }

   private:
    HostsRun& run_;
    DiskProcess& process_;
  };

  void tell(const DiskProcess& process, const std::string& what) {
    if (trace_ != nullptr) *trace_ << calls_ << " " << process.id() << ": " << what << "\n";
  }

  static bool is_journal_sync(const SeamCall& call) {
    return call.kind == FileCall::Sync && call.role == FileRole::Journal;
  }

  void at_call(DiskProcess& process, const SeamCall& call) {
    if (choices_.one_in(scenario_.snapshots_one_in)) snapshots_.push_back({disk_.image(), log_, calls_});
    if (scenario_.kills_one_in == 0 || process.is_dead()) return;
    if (scenario_.dies_in_syncs && !is_journal_sync(call)) return;
    if (!choices_.one_in(scenario_.kills_one_in)) return;
    ++counts_.kills;
    tell(process, "killed");
    process.kill();
  }

  void dawdle(const SeamCall& call) {
    if (scenario_.dawdles && is_journal_sync(call) && choices_.one_in(4)) rest();
  }

  static void rest() {
    for (unsigned turn = 0; turn < kLongTurns; ++turn) Scheduler::pause();
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

  void write(std::size_t writer) {
    std::size_t commits_left = scenario_.commits;
    while (commits_left > 0 && !wrong_) {
      const auto process = disk_.start_process();
      Turn turn(*this, *process);
      InterceptedStorage storage(*process, turn);
      CommitOptions options = commit_options(Durability::Power);
      options.lock_patience = patience_;
      Writer archive(storage, small_archive(), options, scenario_.keeps_journal);
      while (commits_left > 0 && !process->is_dead() && !wrong_) {
        --commits_left;
        commit(archive, *process, writer);
      }
      if (scenario_.dawdles && process->is_dead()) rest();
    }
  }

  void commit(Writer& archive, DiskProcess& process, std::size_t writer) {
    Step step;
    const std::vector<std::size_t> picked = pick_slots(writer);
    for (const std::size_t slot : picked) step.pieces.push_back(slots()[slot]);
    const std::size_t number = log_.begin(picked);
    tell(process, "begins commit " + std::to_string(number) + " of " + std::to_string(picked.size()) +
                      " slots from " + std::to_string(picked.front()));
    Result<void> done;
    for (unsigned tries = 0; tries < kTries; ++tries) {
      done = archive.run(step, number);
      if (done || process.is_dead()) break;
      if (done.error().code != ErrorCode::Busy) break;
      ++counts_.refused;
    }
    // As a mount does when nothing is to be committed for a while.
    if (done && choices_.one_in(3)) static_cast<void>(archive.settle());
    if (done) {
      ++counts_.commits;
      tell(process, "has committed " + std::to_string(number));
      log_.end(number, LoggedCommit::Fate::Done);
    } else if (process.is_dead()) {
      log_.end(number, LoggedCommit::Fate::Unknown);
    } else {
      log_.end(number, LoggedCommit::Fate::Refused);
      if (done.error().code != ErrorCode::Busy)
        wrong_ = "commit " + std::to_string(number) + ": " + text_of(done.error());
      archive.close();
    }
  }

  /// Opens, stays a while, reads, goes. What it reads while others write is not promised.
  void read() {
    for (std::size_t times = 0; times < scenario_.commits && !wrong_; ++times) {
      const auto process = disk_.start_process();
      Turn turn(*this, *process);
      InterceptedStorage storage(*process, turn);
      auto archive = Archive::open(kArchivePath, Access::ReadOnly, storage);
      if (process->is_dead()) continue;
      if (!archive) {
        wrong_ = "a reader can't open: " + text_of(archive.error());
        return;
      }
      std::vector<std::byte> scratch;
      for (std::size_t stays = choices_.below(30); stays-- > 0;) {
        const auto bytes = (*archive)->read({0, small_archive().content().size()}, scratch);
        if (!bytes && !process->is_dead()) wrong_ = "a reader can't read: " + text_of(bytes.error());
      }
    }
  }

  void check(const DiskImage& image, const CommitLog& log, const std::string& when) {
    if (wrong_) return;
    DiskModel disk(scenario_.disk, after_kill(image));
    const auto process = disk.start_process();
    auto file = process->open(kArchivePath, Access::ReadWrite);
    const auto recovered = recover(*process, kArchivePath, **file);
    if (!recovered) {
      wrong_ = "recovery fails: " + text_of(recovered.error());
    } else if (const auto left = process->list(kDirectory, "."); !left->empty()) {
      wrong_ = "LEFT BEHIND: " + left->front() + ": " + recovered->front().explanation;
    } else {
      const DiskImage after = disk.image();
      wrong_ = log.explain(after.content(after.inode_at(kArchivePath)));
    }
    if (!wrong_) return;
    wrong_ = when + ": " + *wrong_;
    if (!recovered) return;
    for (const JournalReport& report : *recovered) {
      *wrong_ += "; " + report.path.filename().string() + " was " + std::string(name_of(report.state)) +
                 ", " + std::to_string(report.ranges) + " ranges" +
                 (report.action == JournalAction::Applied ? ", applied" : "");
    }
  }

  const HostsScenario& scenario_;
  HostsCounts& counts_;
  std::ostream* const trace_;
  RandomChoices choices_;
  DiskModel disk_;
  std::chrono::milliseconds patience_{0};
  CommitLog log_;
  std::vector<Snapshot> snapshots_;
  std::uint64_t calls_ = 0;
  std::optional<std::string> wrong_;
};

}  // namespace

const std::vector<HostsScenario>& hosts_scenarios() {
  static const std::vector<HostsScenario> list = {
      {.name = "different bytes", .each_its_own = true},
      {.name = "different bytes, with kills", .each_its_own = true, .kills_one_in = 60},
      {.name = "the same tensor", .slots = 1},
      {.name = "the same tensor, with kills", .slots = 1, .kills_one_in = 40},
      {.name = "all tensors"},
      {.name = "all tensors, with kills", .commits = 5, .kills_one_in = 60},
      {.name = "few tensors, with kills and readers",
       .readers = 2,
       .commits = 5,
       .slots = 4,
       .kills_one_in = 80},
      {.name = "many writers", .writers = 6, .commits = 2, .kills_one_in = 200},
      {.name = "kept journals, different bytes", .commits = 5, .each_its_own = true, .keeps_journal = true},
      {.name = "kept journals, the same tensor",
       .commits = 5,
       .slots = 1,
       .snapshots_one_in = 8,
       .keeps_journal = true},
      {.name = "kept journals, two writers of two tensors",
       .writers = 2,
       .commits = 8,
       .slots = 2,
       .snapshots_one_in = 4,
       .keeps_journal = true},
      {.name = "kept journals, two writers of one tensor, and a slow disk",
       .writers = 2,
       .commits = 6,
       .slots = 1,
       .snapshots_one_in = 4,
       .keeps_journal = true,
       .dawdles = true},
      {.name = "kept journals, two writers of one tensor, killed in syncs",
       .writers = 2,
       .commits = 6,
       .slots = 1,
       .kills_one_in = 8,
       .dies_in_syncs = true,
       .snapshots_one_in = 4,
       .keeps_journal = true,
       .dawdles = true},
      {.name = "kept journals, the same tensor, with kills",
       .commits = 5,
       .slots = 1,
       .kills_one_in = 40,
       .keeps_journal = true},
      {.name = "kept journals, few tensors, with kills and readers",
       .readers = 2,
       .commits = 6,
       .slots = 4,
       .kills_one_in = 80,
       .keeps_journal = true},
      {.name = "without unnamed files", .commits = 4, .kills_one_in = 60, .disk = {.has_unnamed = false}},
  };
  return list;
}

std::optional<std::string> run_hosts(const HostsScenario& scenario, std::uint64_t seed, HostsCounts& counts,
                                     std::ostream* trace) {
  return HostsRun(scenario, seed, counts, trace).run();
}

}  // namespace stfs::test
