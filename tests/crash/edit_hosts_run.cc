// Actors, kills, and the judge of what a crash leaves.
#include "tests/crash/edit_hosts_run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <ostream>
#include <set>

#include "core/journal/recovery.h"
#include "tests/crash/edit_log.h"
#include "tests/crash/edited_model.h"
#include "tests/crash/workload.h"
#include "tests/support/disk_crash.h"
#include "tests/support/plain.h"
#include "tests/support/scheduler.h"

namespace stfs::test {
namespace {

constexpr std::size_t kCrashesOfSnapshot = 3;
constexpr unsigned kMostTurnsAway = 400;  // a commit has fewer calls
constexpr std::uint64_t kDevicesOfBoot = 16;

class EditHostsRun {
 public:
  EditHostsRun(const EditHostsScenario& scenario, std::uint64_t seed, EditHostsCounts& counts,
               std::ostream* trace)
      : scenario_(scenario),
        counts_(counts),
        trace_(trace),
        choices_(seed),
        layout_(first_model(scenario.shards, choices_)),
        log_(layout_) {}

  std::optional<std::string> run() {
    ++counts_.schedules;
    disk_ = std::make_unique<DiskModel>(scenario_.disk);
    put_model(*disk_, layout_, scenario_.archive, choices_);
    work();
    judge();
    return wrong_;
  }

 private:
  struct Snapshot {
    DiskImage image;
    EditLog log;
    std::uint64_t call;
  };

  /// Turns, kills and snapshots, at each call of one process.
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

  /// Who is killed in a recovery.
  class DiesOnCall final : public Interceptor {
   public:
    DiesOnCall(DiskProcess& process, std::size_t calls) : process_(process), calls_left_(calls) {}
    Verdict before(const SeamCall&) override {
      if (calls_left_-- == 0) process_.kill();
      return {};
    }

   private:
    DiskProcess& process_;
    std::size_t calls_left_;
  };

  template <class T>
  const T& one_of(const std::vector<T>& list) {
    return list[choices_.below(list.size())];
  }

  /// Somebody somewhere. Each boot of a host has another id and may give other numbers to devices.
  std::unique_ptr<DiskProcess> start_process(DiskModel& disk, std::size_t boot = 0) {
    DiskMount mount = one_of(scenario_.mounts);
    boot += boots_[mount.boot.host];
    mount.boot.id[1] = static_cast<std::uint8_t>(boot);
    mount.device += boot * kDevicesOfBoot;
    return disk.start_process(one_of(scenario_.users), mount);
  }

  void tell(const DiskProcess& process, const std::string& what) {
    if (trace_ != nullptr) *trace_ << calls_ << " " << process.id() << ": " << what << "\n";
  }

  void at_call(DiskProcess& process, const SeamCall& call) {
    ++calls_;
    tell(process, std::string(name_of(call.kind)) + " of the " + std::string(name_of(call.role)));
    if (choices_.one_in(scenario_.snapshots_one_in)) snapshots_.push_back({disk_->image(), log_, calls_});
    if (scenario_.crashes_one_in != 0 && choices_.one_in(scenario_.crashes_one_in)) {
      const std::uint64_t host = one_of(scenario_.mounts).boot.host;
      tell(process, "host " + std::to_string(host) + " crashes");
      disk_->crash_host(host, choices_);
      ++boots_[host];
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

  /// Nothing was done because others are at work, or were.
  bool is_refusal(const Error& error) {
    const bool is_stale = error.code == ErrorCode::ArchiveChanged && error.errno_value == ESTALE;
    // The index was read before an edit, and its shards afterwards, as often as it was tried.
    const bool is_amid = scenario_.shards > 1 && contains(error.message, "index and shards disagree");
    counts_.stale += is_stale;
    const bool is_refused = is_stale || is_amid || error.code == ErrorCode::Busy;
    counts_.refused += is_refused;
    return is_refused;
  }

  void write() {
    std::size_t commits_left = scenario_.commits;
    while (commits_left > 0 && !wrong_) {
      const auto process = start_process(*disk_);
      Turn turn(*this, *process);
      InterceptedStorage storage(*process, turn);
      while (commits_left > 0 && !process->is_dead() && !wrong_)
        work_on_model(*process, storage, commits_left);
    }
  }

  /// Opens the model and changes it, until somebody else has.
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

  /// @return whether it was done.
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

  /// Opens it, stays a while, reads all of it, and goes. Each shard has a structure that was there meanwhile.
  void read() {
    for (std::size_t times = 0; times < scenario_.commits && !wrong_; ++times) {
      const auto process = start_process(*disk_);
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

  /// What is seen before recovery, what recovery makes of it, and whether work goes on.
  void check(DiskImage image, const EditLog& log, std::size_t boot, const std::string& when) {
    if (wrong_) return;
    const std::vector<EditedModel> allowed = log.allowed();
    for (unsigned in_a_row = 0; !wrong_; ++in_a_row) {
      ++counts_.states;
      counts_.in_recovery += in_a_row > 0;
      check_plainly(image, log, allowed);
      DiskModel disk(scenario_.disk, image);
      if (choices_.one_in(3)) look(disk, allowed, boot);
      const bool crashes_again = in_a_row < 3 && choices_.one_in(3);
      std::string reports;
      if (!recover_all(disk, boot, crashes_again, reports)) {
        const bool loses_power = choices_.one_in(2);
        image = loses_power ? after_random_power_loss(disk.image(), choices_, scenario_.disk.has_stale_blocks)
                            : after_kill(disk.image());
        boot += loses_power;
        continue;
      }
      check_recovered(disk, allowed);
      if (wrong_) *wrong_ += reports;
      if (!wrong_ && choices_.one_in(3)) follow_up(disk, boot);
      break;
    }
    if (wrong_) wrong_ = when + ": " + *wrong_;
  }

  /// A program that knows the format and no journals refuses an archive, or finds what was there. Bytes may
  /// be a mix only while a patch is on its way.
  void check_plainly(const DiskImage& image, const EditLog& log, const std::vector<EditedModel>& allowed) {
    for (std::uint32_t shard = 0; shard < layout_.shards.size(); ++shard) {
      const auto seen = shard_in(image, layout_, shard);
      if (!seen) {
        ++counts_.hidden;
        continue;
      }
      const bool may_be_mixed = scenario_.keeps_journal || log.is_patched(shard);
      const auto is_it = [&](const EditedModel& one) {
        return may_be_mixed ? have_same_structure(one.shards[shard], *seen) : one.shards[shard] == *seen;
      };
      const bool is_known = std::ranges::any_of(allowed, is_it) || std::ranges::any_of(log.former(), is_it);
      if (!is_known && !wrong_) wrong_ = "MISREAD: a plain reader finds what never was";
    }
  }

  /// Somebody who may not write sees what is committed all the same.
  void look(DiskModel& disk, const std::vector<EditedModel>& allowed, std::size_t boot) {
    const auto process = start_process(disk, boot);
    EditedModel found;
    for (std::size_t shard = 0; shard < layout_.shards.size() && !wrong_; ++shard) {
      const auto archive =
          Archive::open(path_of_shard(layout_, shard), Access::ReadOnly, *process, Io::Pread);
      auto content = archive ? content_of(**archive) : Result<EditedContent>(tl::unexpected(archive.error()));
      if (content) {
        found.shards.push_back(std::move(*content));
      } else {
        wrong_ = "A READER can't read: " + text_of(content.error());
      }
    }
    if (!wrong_ && std::ranges::find(allowed, found) == allowed.end())
      wrong_ = "A READER sees what never was:" + difference(found, allowed.front());
  }

  /// @param crashes  somebody is killed meanwhile. @return false: he was.
  bool recover_all(DiskModel& disk, std::size_t boot, bool crashes, std::string& reports) {
    std::vector<std::size_t> order(layout_.shards.size());
    for (std::size_t shard = 0; shard < order.size(); ++shard) order[shard] = shard;
    std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(choices_.below(order.size())));
    const std::size_t victim = choices_.below(order.size());
    for (std::size_t at = 0; at < order.size() && !wrong_; ++at) {
      const auto path = path_of_shard(layout_, order[at]);
      const auto process = start_process(disk, boot);
      DiesOnCall death(*process, crashes && at == victim ? choices_.below(60) : SIZE_MAX);
      InterceptedStorage storage(*process, death);
      auto file = storage.open(path, Access::ReadWrite);
      auto recovered = file ? recover(storage, path, **file)
                            : Result<std::vector<JournalReport>>(tl::unexpected(file.error()));
      if (process->is_dead()) return false;
      if (!recovered) {
        wrong_ = "RECOVERY fails: " + text_of(recovered.error());
        return true;
      }
      for (const JournalReport& report : *recovered) {
        reports += "; " + report.path.filename().string() + " was " + std::string(name_of(report.state)) +
                   " (" + report.explanation + ")" +
                   (report.action == JournalAction::Applied ? ", applied" : "");
        if (report.state == JournalState::Unknown && !report.blocks_commits)
          may_stay_.push_back(report.path.filename().string());
      }
    }
    return true;
  }

  void check_recovered(DiskModel& disk, const std::vector<EditedModel>& allowed) {
    if (wrong_) return;
    const DiskImage image = disk.image();
    const auto plain = model_in(image, layout_);
    if (!plain) {
      wrong_ = "INVALID: a plain reader refuses what recovery left";
    } else if (std::ranges::find(allowed, *plain) == allowed.end()) {
      wrong_ = "TORN or LOST:" + difference(*plain, allowed.front());
    } else {
      wrong_ = index_mistake(image, *plain);
    }
    const auto left = disk.start_process()->list(kDirectory, ".");
    for (const std::string& name : *left) {
      // Where files are staged under a name, one whose maker was killed before he gave it to others is his.
      const bool may_stay =
          name.ends_with(kStagedSuffix) && std::ranges::find(may_stay_, name) != may_stay_.end();
      if (!wrong_ && !may_stay) wrong_ = "LEFT BEHIND: " + name;
    }
    may_stay_.clear();
  }

  /// The model takes the next change as if nothing had been.
  void follow_up(DiskModel& disk, std::size_t boot) {
    const auto before = model_in(disk.image(), layout_);
    const auto process = start_process(disk, boot);
    auto model = open_model(layout_, Access::ReadWrite, *process);
    if (!model) {
      wrong_ = "NEXT: can't open: " + text_of(model.error());
      return;
    }
    const ModelStep step = random_model_step(structure_of(**model, layout_), choices_);
    const auto expected = content_after(step, *before);
    if (!expected) {
      wrong_ = "NEXT: the model shows another structure than its archives";
      return;
    }
    Result<void> done;
    if (!step.is_compaction) done = carry_out(**model, step, commit_options(Durability::Power));
    model->reset();
    for (std::size_t shard = 0; step.is_compaction && done && shard < layout_.shards.size(); ++shard)
      done = compact(*process, path_of_shard(layout_, shard), commit_options(Durability::Power));
    const auto after = model_in(disk.image(), layout_);
    if (!done) {
      wrong_ = "NEXT: " + text_of(done.error());
    } else if (!after || *after != *expected) {
      wrong_ = "NEXT: TORN or LOST" + (after ? difference(*after, *expected) : "");
    } else if (auto mistake = index_mistake(disk.image(), *after)) {
      wrong_ = "NEXT: " + *mistake;
    }
  }

  const EditHostsScenario& scenario_;
  EditHostsCounts& counts_;
  std::ostream* const trace_;
  RandomChoices choices_;
  EditedModel layout_;  // at first; how many shards there are does not change
  std::unique_ptr<DiskModel> disk_;
  std::map<std::uint64_t, std::size_t> boots_;  // of each host, how often it has crashed
  std::chrono::milliseconds patience_{0};
  EditLog log_;
  std::vector<Snapshot> snapshots_;
  std::vector<std::string> may_stay_;
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
  states += other.states;
  in_recovery += other.in_recovery;
  hidden += other.hidden;
  return *this;
}

std::optional<std::string> run_edit_hosts(const EditHostsScenario& scenario, std::uint64_t seed,
                                          EditHostsCounts& counts, std::ostream* trace) {
  return EditHostsRun(scenario, seed, counts, trace).run();
}

}  // namespace stfs::test
