#include "tests/crash/edit_hosts_run.h"

#include <algorithm>
#include <memory>
#include <ostream>
#include <set>

#include "tests/crash/edit_log.h"
#include "tests/crash/edited_model.h"
#include "tests/crash/workload.h"
#include "tests/support/disk_crash.h"
#include "tests/support/plain.h"
#include "tests/support/scheduler.h"

namespace stfs::test {
namespace {

constexpr std::size_t kCrashesOfSnapshot = 3;
constexpr unsigned kMostTurnsAway = 400;  // more than a commit has calls

class EditHostsRun {
 public:
  EditHostsRun(const EditHostsScenario& scenario, std::uint64_t seed, EditHostsCounts& counts,
               std::ostream* trace)
      : scenario_(scenario),
        counts_(counts),
        trace_(trace),
        choices_(seed),
        layout_(first_model(scenario.shards, choices_)),
        cast_(scenario.users, scenario.mounts, choices_),
        judge_(layout_, cast_, scenario.disk, scenario.keeps_journal, choices_),
        log_(layout_) {}

  std::optional<std::string> run() {
    ++counts_.schedules;
    disk_ = std::make_unique<DiskModel>(scenario_.disk);
    put_model(*disk_, layout_, scenario_.archive, choices_);
    work();
    judge();
    counts_.judged += judge_.counts();
    return wrong_;
  }

 private:
  struct Snapshot {
    DiskImage image;
    EditLog log;
    std::uint64_t call;
  };

  /// Changes turns, kills and takes snapshots at each call of one process.
  class Turn final : public Interceptor {
   public:
    Turn(EditHostsRun& run, DiskProcess& process) : run_(run), process_(process) {}
    Verdict before(const SeamCall& call) override {
      Scheduler::pause();
      run_.at_call(process_, call);
      const bool is_lie = std::ranges::any_of(run_.scenario_.lies, [&](const SeamCall& lie) {
        return lie.kind == call.kind && lie.role == call.role;
      });
      return {.kind = is_lie ? Verdict::Kind::Lie : Verdict::Kind::Pass};
    }

   private:
    EditHostsRun& run_;
    DiskProcess& process_;
  };

  void tell(const DiskProcess& process, const std::string& what) {
    if (trace_ != nullptr) *trace_ << calls_ << " " << process.id() << ": " << what << "\n";
  }

  void at_call(DiskProcess& process, const SeamCall& call) {
    ++calls_;
    tell(process, std::string(name_of(call.kind)) + " of the " + std::string(name_of(call.role)));
    if (choices_.one_in(scenario_.snapshots_one_in)) snapshots_.push_back({disk_->image(), log_, calls_});
    if (scenario_.crashes_one_in != 0 && choices_.one_in(scenario_.crashes_one_in)) {
      tell(process, "host " + std::to_string(cast_.crash_host(*disk_)) + " crashes");
      ++counts_.host_crashes;
    }
    if (scenario_.kills_one_in == 0 || process.is_dead() || !choices_.one_in(scenario_.kills_one_in)) return;
    ++counts_.kills;
    tell(process, "killed");
    process.kill();
  }

  static void stay_away(std::size_t turns) {
    while (turns-- > 0) Scheduler::pause();
  }

  void work() {
    Scheduler scheduler(choices_, 1 + choices_.below(6));
    patience_ = std::chrono::seconds(choices_.one_in(2) ? 0 : 10);
    for (std::size_t writer = 0; writer < scenario_.writers; ++writer) scheduler.add([this] { write(); });
    for (std::size_t reader = 0; reader < scenario_.readers; ++reader) scheduler.add([this] { read(); });
    scheduler.run();
  }

  [[nodiscard]] CommitOptions options() const {
    CommitOptions options = commit_options(Durability::Power);
    options.lock_patience = patience_;
    return options;
  }

  /// True for an error because of other processes that change or have changed the model.
  bool is_refusal(const Error& error) {
    const bool is_stale = error.code == ErrorCode::ArchiveChanged && error.errno_value == ESTALE;
    // In each attempt the index was read before an edit, and its shards after it.
    const bool is_amid = scenario_.shards > 1 && contains(error.message, "index and shards disagree");
    counts_.stale += is_stale;
    const bool is_refused = is_stale || is_amid || error.code == ErrorCode::Busy;
    counts_.refused += is_refused;
    return is_refused;
  }

  void write() {
    std::size_t commits_left = scenario_.commits;
    while (commits_left > 0 && !wrong_) {
      const auto process = cast_.start_process(*disk_);
      Turn turn(*this, *process);
      InterceptedStorage storage(*process, turn);
      while (commits_left > 0 && !process->is_dead() && !wrong_)
        work_on_model(*process, storage, commits_left);
    }
  }

  /// Opens the model and changes it until another process has edited it.
  void work_on_model(DiskProcess& process, Storage& storage, std::size_t& commits_left) {
    const std::set<std::size_t> dead = log_.dead();
    auto model = open_model(layout_, Access::ReadWrite, storage);
    if (process.is_dead()) return;
    if (model) log_.settle(dead);
    if (!model) {
      --commits_left;
      fail_unless(is_refusal(model.error()), process, "can't open", model.error());
      return;
    }
    const EditedModel there = structure_of(**model, layout_);
    if (scenario_.keeps_journal) prepare_lanes(**model);
    bool is_current = true;
    while (is_current && commits_left > 0 && !process.is_dead() && !wrong_) {
      --commits_left;
      if (scenario_.is_late && choices_.one_in(2)) {
        if (choices_.one_in(2)) settle_lanes(**model);
        stay_away(choices_.below(kMostTurnsAway));
      }
      const ModelStep step = random_model_step(there, choices_);
      if (step.is_compaction) {
        close_lanes(**model);
        model->reset();
        compact_one(process, storage);
        return;
      }
      is_current = commit(process, **model, step) && step.is_patch;
    }
    close_lanes(**model);
  }

  static void prepare_lanes(const Model& model) {
    for (std::uint32_t at = 0; at < model.shards().size(); ++at)
      static_cast<void>(model.archive(at).lane_journal().prepare());
  }
  static void settle_lanes(const Model& model) {
    for (std::uint32_t at = 0; at < model.shards().size(); ++at)
      static_cast<void>(model.archive(at).lane_journal().settle(Durability::Power));
  }
  static void close_lanes(const Model& model) {
    for (std::uint32_t at = 0; at < model.shards().size(); ++at)
      static_cast<void>(model.archive(at).lane_journal().retire(Durability::Power));
  }

  void fail_unless(bool is_expected, const DiskProcess& process, const std::string& what,
                   const Error& error) {
    tell(process, what + ": " + text_of(error));
    if (!is_expected && !wrong_)
      wrong_ = "process " + std::to_string(process.id()) + " " + what + ": " + text_of(error);
  }

  /// @return whether the step was done.
  bool commit(DiskProcess& process, const Model& model, const ModelStep& step) {
    const std::vector<EditedModel> before = log_.allowed();
    const std::size_t number = log_.begin(step);
    tell(process, "begins " + std::string(step.is_patch ? "patch " : "edit ") + std::to_string(number));
    CommitOptions with = options();
    with.settle_others = [&] { settle_lanes(model); };
    const auto done = carry_out(model, step, with);
    if (done) {
      tell(process, "has done " + std::to_string(number));
      ++(step.is_patch ? counts_.patches : counts_.edits);
      log_.end(number, EditLog::Fate::Done);
      if (log_.allowed().empty()) {
        wrong_ = "NOTHING explains the success of " + std::to_string(number) +
                 ", made for another model:" + difference(step.before, before.front());
      }
      return true;
    }
    const bool is_dead = process.is_dead();
    log_.end(number, is_dead ? EditLog::Fate::Unknown : EditLog::Fate::Refused);
    if (!is_dead)
      fail_unless(is_refusal(done.error()), process, "can't commit " + std::to_string(number), done.error());
    return false;
  }

  void compact_one(const DiskProcess& process, Storage& storage) {
    const auto path = path_of_shard(layout_, choices_.below(layout_.shards.size()));
    tell(process, "compacts");
    const auto done = compact(storage, path, options());
    counts_.compactions += done.has_value();
    if (!done && !process.is_dead())
      fail_unless(is_refusal(done.error()), process, "can't compact", done.error());
  }

  /// Opens the model, pauses, reads all of it, and closes it. Each shard must have a structure that was
  /// allowed during the opening.
  void read() {
    for (std::size_t times = 0; times < scenario_.commits && !wrong_; ++times) {
      const auto process = cast_.start_process(*disk_);
      Turn turn(*this, *process);
      InterceptedStorage storage(*process, turn);
      std::vector<EditedModel> possible = log_.allowed();
      const auto model = open_model(layout_, Access::ReadOnly, storage);
      if (process->is_dead()) continue;
      if (!model) {
        fail_unless(is_refusal(model.error()), *process, "can't open to read", model.error());
        continue;
      }
      std::ranges::move(log_.allowed(), std::back_inserter(possible));
      const EditedModel found = structure_of(**model, layout_);
      for (std::size_t shard = 0; shard < found.shards.size(); ++shard) {
        const bool is_known =
            found.shards[shard].tensors.empty() || std::ranges::any_of(possible, [&](const EditedModel& one) {
              return have_same_structure(one.shards[shard], found.shards[shard]);
            });
        if (!is_known) wrong_ = "A READER finds a structure that never was";
      }
      if (scenario_.is_late) stay_away(choices_.below(kMostTurnsAway));
      for (std::uint32_t at = 0; at < (*model)->shards().size() && !process->is_dead(); ++at) {
        const auto content =
            (*model)->shards()[at].archive ? content_of((*model)->archive(at)) : EditedContent{};
        if (!content && !process->is_dead()) wrong_ = "A READER can't read: " + text_of(content.error());
      }
    }
  }

  void judge() {
    if (wrong_) return;
    if (disk_->has_locks_held()) {
      wrong_ = "a lock is held after everybody has gone";
      return;
    }
    check(after_kill(disk_->image()), log_, 0, "at the end");
    for (const Snapshot& snapshot : snapshots_) {
      for (std::size_t times = 0; times < kCrashesOfSnapshot && !wrong_; ++times) {
        check(after_random_power_loss(snapshot.image, choices_, scenario_.disk.has_stale_blocks),
              snapshot.log, 1, "power lost at call " + std::to_string(snapshot.call));
      }
    }
  }

  void check(DiskImage image, const EditLog& log, std::size_t boot, const std::string& when) {
    if (wrong_) return;
    wrong_ = judge_.recover(image, log, boot);
    if (!wrong_ && choices_.one_in(3)) wrong_ = judge_.follow_up(image, boot);
    if (wrong_) wrong_ = when + ": " + *wrong_;
  }

  const EditHostsScenario& scenario_;
  EditHostsCounts& counts_;
  std::ostream* const trace_;
  RandomChoices choices_;
  EditedModel layout_;  // the first model; the number of shards does not change
  std::unique_ptr<DiskModel> disk_;
  EditCast cast_;
  EditJudge judge_;
  std::chrono::milliseconds patience_{0};
  EditLog log_;
  std::vector<Snapshot> snapshots_;
  std::uint64_t calls_ = 0;
  std::optional<std::string> wrong_;
};

}  // namespace

EditHostsCounts& EditHostsCounts::operator+=(const EditHostsCounts& other) {
  schedules += other.schedules;
  edits += other.edits;
  patches += other.patches;
  compactions += other.compactions;
  refused += other.refused;
  stale += other.stale;
  kills += other.kills;
  host_crashes += other.host_crashes;
  judged += other.judged;
  return *this;
}

std::optional<std::string> run_edit_hosts(const EditHostsScenario& scenario, std::uint64_t seed,
                                          EditHostsCounts& counts, std::ostream* trace) {
  return EditHostsRun(scenario, seed, counts, trace).run();
}

}  // namespace stfs::test
