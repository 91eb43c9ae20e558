// Uses a disk for some hundred steps, then a new disk with the same archives, because the model of the disk
// keeps every file that ever existed.
#include "tests/crash/edit_sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "tests/crash/cast.h"
#include "tests/crash/state_record.h"
#include "tests/crash/workload.h"
#include "tests/support/disk_crash.h"
#include "tests/support/plain.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kStepsOfDisk = 300;
constexpr std::size_t kOneDeath = 8;           // steps
constexpr std::size_t kOneLateComer = 12;      // steps; the process then keeps the model open
constexpr std::size_t kOneReturn = 5;          // steps, until the late process tries to change the model
constexpr std::size_t kCallsUntilDeath = 160;  // some steps have fewer calls
constexpr std::size_t kLostPowers = 3;         // losses of power that are tried after each death

class EditSequence {
 public:
  EditSequence(const SequenceScenario& scenario, std::uint64_t seed, SequenceCounts& counts,
               const SequenceRecord& record)
      : scenario_(scenario),
        counts_(counts),
        record_(record),
        choices_(seed),
        now_(first_model(scenario.shards, choices_)),
        layout_(now_),
        cast_(scenario.users, scenario.mounts, choices_),
        judge_(layout_, cast_, scenario.disk, scenario.keeps_journal, choices_),
        disk_(std::make_unique<DiskModel>(scenario.disk)) {
    put_model(*disk_, now_, kOfAnotherUser, choices_);
  }

  std::optional<std::string> run(std::uint64_t steps) {
    const std::uint64_t goal = counts_.edits + counts_.patches + steps;
    for (std::uint64_t step = 1; counts_.edits + counts_.patches < goal && !wrong_; ++step) {
      change();
      if (!wrong_ && (step % 16 == 0)) check_now();
      if (!wrong_ && step % kStepsOfDisk == 0) renew_disk();
    }
    if (!wrong_) renew_disk();
    counts_.judged += judge_.counts();
    if (!wrong_ && !record_.directory.empty()) record_model(record_.directory, disk_->image(), now_);
    return wrong_;
  }

 private:
  /// A process with the model open.
  struct Guest {
    std::unique_ptr<DiskProcess> process;
    std::unique_ptr<DiesOnCall> death;
    std::unique_ptr<InterceptedStorage> storage;
    std::unique_ptr<Model> model;

    ~Guest() { leave(); }
    void settle() const {
      for (std::uint32_t at = 0; at < model->shards().size(); ++at)
        static_cast<void>(model->archive(at).lane_journal().settle(Durability::Power));
    }
    void leave() {
      for (std::uint32_t at = 0; model && at < model->shards().size(); ++at)
        static_cast<void>(model->archive(at).lane_journal().retire(Durability::Power));
      model.reset();
    }
  };

  std::unique_ptr<Guest> come(bool dies) {
    auto guest = std::make_unique<Guest>();
    guest->process = cast_.start_process(*disk_, boot_);
    guest->death =
        std::make_unique<DiesOnCall>(*guest->process, dies ? choices_.below(kCallsUntilDeath) : SIZE_MAX);
    guest->storage = std::make_unique<InterceptedStorage>(*guest->process, *guest->death);
    auto model = open_model(layout_, Access::ReadWrite, *guest->storage);
    if (model) {
      guest->model = std::move(*model);
      for (std::uint32_t at = 0; scenario_.keeps_journal && at < guest->model->shards().size(); ++at)
        static_cast<void>(guest->model->archive(at).lane_journal().prepare());
    } else if (!guest->process->is_dead()) {
      wrong_ = "can't open: " + text_of(model.error());
    }
    return guest;
  }

  /// Makes one transaction, and checks its outcome.
  void change() {
    const bool is_late = late_ && choices_.one_in(kOneReturn);
    std::unique_ptr<Guest> guest = is_late ? std::move(late_) : come(choices_.one_in(kOneDeath));
    if (wrong_) return;
    if (guest->process->is_dead()) return die(EditLog(now_), std::move(guest));
    const ModelStep step = random_model_step(structure_of(*guest->model, layout_), choices_);
    EditLog log(now_);
    const std::size_t number = log.begin(step);
    Result<void> done;
    if (step.is_compaction) {
      guest->leave();
      done = compact(*guest->storage, path_of_shard(layout_, choices_.below(layout_.shards.size())),
                     commit_options(Durability::Power));
    } else {
      done = carry_out(*guest->model, step, commit_options(Durability::Power));
    }
    if (guest->process->is_dead()) {
      log.end(number, EditLog::Fate::Unknown);
      return die(log, std::move(guest), &step);
    }
    if (!done) return refuse(done.error(), is_late);
    log.end(number, EditLog::Fate::Done);
    if (log.allowed().empty()) {
      wrong_ = "NOTHING explains a success";
      return;
    }
    now_ = log.allowed().front();
    count(step);
    if (step.is_patch && !late_ && choices_.one_in(kOneLateComer)) {
      guest->settle();
      late_ = std::move(guest);
    }
  }

  void count(const ModelStep& step) {
    ++(step.is_compaction ? counts_.compactions : step.is_patch ? counts_.patches : counts_.edits);
  }

  void refuse(const Error& why, bool is_late) {
    const bool is_stale = is_late && why.code == ErrorCode::ArchiveChanged && why.errno_value == ESTALE;
    const bool is_busy = late_ && why.code == ErrorCode::Busy;
    counts_.stale += is_stale;
    ++counts_.refused;
    if (!is_stale && !is_busy) wrong_ = "a change fails: " + text_of(why);
    // The late process may block others for long, so it sometimes closes the model.
    if (is_busy && choices_.one_in(3)) late_.reset();
  }

  /// A process has died alone, with its host, or by a loss of power. Another process continues.
  void die(const EditLog& log, std::unique_ptr<Guest> dead, const ModelStep* step = nullptr) {
    dead.reset();
    const bool loses_power = choices_.one_in(3);
    if (loses_power) {
      ++counts_.power_losses;
      ++boot_;
    } else if (choices_.one_in(2)) {
      ++counts_.host_crashes;
      cast_.crash_host(*disk_);
    } else {
      ++counts_.kills;
    }
    if (late_ && late_->process->is_dead()) late_.reset();
    DiskImage image = disk_->image();
    for (std::size_t times = 0; times < kLostPowers && !wrong_; ++times) {
      DiskImage other = after_random_power_loss(image, choices_, scenario_.disk.has_stale_blocks);
      keep_states(other, log);
      std::size_t boot = boot_ + 1;
      wrong_ = judge_.recover(other, log, boot);
    }
    if (wrong_) return;
    if (!loses_power && choices_.one_in(2)) return recover_in_place(log, step);
    late_.reset();
    image = loses_power ? after_random_power_loss(image, choices_, scenario_.disk.has_stale_blocks)
                        : after_kill(disk_->image());
    keep_states(image, log);
    wrong_ = judge_.recover(image, log, boot_);
    if (wrong_) return;
    disk_ = std::make_unique<DiskModel>(scenario_.disk, image);
    adopt(image, step);
  }

  /// The next process that opens the model recovers it, while others may have it open.
  void recover_in_place(const EditLog& log, const ModelStep* step) {
    keep_states(disk_->image(), log);
    wrong_ = judge_.check_plainly(disk_->image(), log);
    if (wrong_) return;
    const auto next = come(false);
    if (wrong_) return;
    next->leave();
    const DiskImage image = disk_->image();
    const auto plain = model_in(image, layout_);
    const auto allowed = log.allowed();
    if (!plain) {
      wrong_ = "INVALID: a plain reader refuses what an opening left";
    } else if (std::ranges::find(allowed, *plain) == allowed.end()) {
      wrong_ = "TORN or LOST:" + difference(*plain, allowed.front());
    } else {
      wrong_ = index_mistake(image, *plain);
    }
    if (!wrong_) adopt(image, step);
  }

  /// Takes the recovered model as the present model.
  void adopt(const DiskImage& image, const ModelStep* step) {
    EditedModel there = *model_in(image, layout_);
    if (step != nullptr && there != now_) count(*step);
    now_ = std::move(there);
  }

  void keep_states(const DiskImage& image, const EditLog& log) {
    if (record_.directory.empty() || !choices_.one_in(record_.one_in)) return;
    for (std::uint32_t shard = 0; shard < layout_.shards.size(); ++shard)
      record_state(record_.directory, image, layout_, shard, log, judge_.may_be_mixed(log, shard));
  }

  void check_now() {
    // The disk may have some bytes only in a lane journal, but programs read them from the archive.
    const auto plain = model_in(disk_->image(), layout_);
    if (!plain) {
      wrong_ = "INVALID: a plain reader refuses the archive";
    } else if (*plain != now_) {
      wrong_ = "another content than in memory:" + difference(*plain, now_);
    } else {
      wrong_ = index_mistake(disk_->image(), now_);
    }
  }

  void renew_disk() {
    late_.reset();
    // A process may have been killed while it closed the model. The next opening recovers its journals.
    come(false)->leave();
    if (!wrong_) check_now();
    const DiskImage image = disk_->image();
    const auto left = disk_->start_process()->list(kDirectory, ".");
    if (!wrong_ && !left->empty() && scenario_.disk.has_unnamed) wrong_ = "LEFT BEHIND: " + left->front();
    disk_ = std::make_unique<DiskModel>(scenario_.disk);
    const auto copy = [&](const std::filesystem::path& path) {
      disk_->put(path.native(), image.content(image.inode_at(path.native())), kOfAnotherUser);
    };
    for (std::size_t shard = 0; shard < layout_.shards.size(); ++shard) copy(path_of_shard(layout_, shard));
    if (layout_.has_index()) copy(path_of(layout_));
  }

  const SequenceScenario& scenario_;
  SequenceCounts& counts_;
  const SequenceRecord& record_;
  RandomChoices choices_;
  EditedModel now_;
  const EditedModel layout_;  // the first model; the number of shards does not change
  EditCast cast_;
  EditJudge judge_;
  std::unique_ptr<DiskModel> disk_;
  std::unique_ptr<Guest> late_;
  std::size_t boot_ = 0;
  std::optional<std::string> wrong_;
};

}  // namespace

const std::vector<SequenceScenario>& sequence_scenarios() {
  static const std::vector<SequenceScenario> list = {
      {.name = "one archive",
       .users = {kRoot, kAlice, kBob},
       .mounts = {kOneHost, kOtherHost},
       .disk = kGroupDirectory},
      {.name = "shards",
       .shards = 3,
       .users = {kRoot, kAlice, kBob},
       .mounts = {kOneHost, kOtherHost},
       .disk = kGroupDirectory},
      {.name = "one archive, kept journals",
       .keeps_journal = true,
       .users = {kRoot, kAlice, kBob},
       .mounts = {kServer, kOtherHost},
       .disk = kGroupDirectory},
  };
  return list;
}

SequenceCounts& SequenceCounts::operator+=(const SequenceCounts& other) {
  edits += other.edits;
  patches += other.patches;
  compactions += other.compactions;
  refused += other.refused;
  stale += other.stale;
  kills += other.kills;
  host_crashes += other.host_crashes;
  power_losses += other.power_losses;
  judged += other.judged;
  return *this;
}

std::ostream& operator<<(std::ostream& out, const SequenceCounts& counts) {
  return out << fmt::format(
             "{} edits, {} patches, {} compactions, {} refused ({} because of another structure), {} kills, "
             "{} crashes of a host, {} losses of power; {} states, {} after a crash of a recovery, {} hidden "
             "archives; 0 torn, 0 lost, 0 misread",
             counts.edits, counts.patches, counts.compactions, counts.refused, counts.stale, counts.kills,
             counts.host_crashes, counts.power_losses, counts.judged.states, counts.judged.in_recovery,
             counts.judged.hidden);
}

std::optional<std::string> run_sequence(const SequenceScenario& scenario, std::uint64_t seed,
                                        std::uint64_t steps, SequenceCounts& counts,
                                        const SequenceRecord& record) {
  return EditSequence(scenario, seed, counts, record).run(steps);
}

}  // namespace stfs::test
