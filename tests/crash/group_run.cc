#include "tests/crash/group_run.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "core/commit/commit_protocol.h"
#include "core/journal/recovery.h"
#include "tests/crash/workload.h"
#include "tests/support/choices.h"
#include "tests/support/disk_crash.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/plain.h"
#include "tests/support/scheduler.h"

namespace stfs::test {
namespace {

constexpr std::size_t kGroups = 2;
constexpr std::size_t kMoments = 8;  // crashes of a run
// One kill in so many calls of the committing process. Calls about names decide whether a group is committed,
// so these have more kills.
constexpr std::size_t kOneKill = 100;
constexpr std::size_t kOneKillOfNames = 6;

const std::string kDirectoryOfState = std::string(kDirectory) + "/.weight_sync";
const std::string kStatePath = std::string(kDirectory) + "/" + std::string(kSyncStateName);
const DiskAccess kTheirs{.uid = 1000, .gid = 200, .permissions = 0660};

class GroupRun {
 public:
  GroupRun(std::uint64_t seed, GroupCounts& counts, GroupWorld world) : counts_(counts), choices_(seed) {
    disk_options_ = {.has_clone = choices_.one_in(3),
                     .has_unnamed = !choices_.one_in(3),
                     .has_birth_times = !choices_.one_in(4)};
    for (std::size_t at = 2 + choices_.below(2); at-- > 0;) {
      paths_.push_back("/models/" + std::string(1, static_cast<char>('a' + at)) + ".safetensors");
    }
    states_.emplace_back(paths_.size(), small_archive().content());
    has_sync_state_ = choices_.one_in(2);
    sync_states_.emplace_back(choices_.one_in(2) ? "" : "before");
    mounts_ = {disk_options_.mount()};
    if (world == GroupWorld::Edges) add_edges();
  }

  std::optional<std::string> run() {
    record();
    for (std::size_t times = 0; times < kMoments && !wrong_; ++times) {
      // The end of the run is likelier than other moments, because there most groups are promised.
      const std::size_t at =
          choices_.one_in(kMoments) ? moments_.size() - 1 : choices_.below(moments_.size());
      crash(moments_[at]);
    }
    return wrong_;
  }

 private:
  struct Moment {
    DiskImage image;
    std::size_t promised;  // the number of groups that are committed for sure
    std::size_t begun;
  };

  /// Changes turns and kills at each call of one process.
  class Turn final : public Interceptor {
   public:
    Turn(Choices& choices, DiskProcess& process, bool is_killed)
        : choices_(choices), process_(process), is_killed_(is_killed) {}
    Verdict before(const SeamCall& call) override {
      Scheduler::pause();
      const bool is_about_names = call.kind == FileCall::Publish || call.kind == FileCall::SyncDirectory;
      const std::size_t one_in = is_about_names ? kOneKillOfNames : kOneKill;
      if (is_killed_ && !process_.is_dead() && choices_.one_in(one_in)) process_.kill();
      return {};
    }

   private:
    Choices& choices_;
    DiskProcess& process_;
    const bool is_killed_;
  };

  void add_edges() {
    has_edges_ = true;
    has_company_ = choices_.one_in(3);
    users_ = people();
    // A journal that is staged under a name can be read only by its maker until the maker gives it to others.
    if (!disk_options_.has_unnamed) users_ = {users_[choices_.below(users_.size())]};
    if (choices_.one_in(2)) {
      mounts_.front().has_birth_times = false;
      mounts_.push_back({.device = 100, .has_birth_times = false, .boot = {.id = {2}, .host = 2}});
    }
    if (!choices_.one_in(3)) return;
    durability_ = Durability::Process;
    loses_unsynced_ = choices_.one_in(2);
    if (loses_unsynced_) {
      // Another host can't know that the boot is over, and stale bytes look like damage.
      mounts_.resize(1);
      disk_options_.has_stale_blocks = false;
    }
    can_be_told_ = mounts_.size() == 1;
  }

  /// @param boot  the number of losses of power so far.
  std::unique_ptr<DiskProcess> start_process(DiskModel& disk, std::uint64_t boot) {
    DiskMount mount = mounts_[choices_.below(mounts_.size())];
    mount.boot.id[1] = static_cast<std::uint8_t>(boot);
    // Without birth times, another device number would mean another disk.
    if (has_edges_ || mount.has_birth_times) mount.device += boot;
    return disk.start_process(users_[choices_.below(users_.size())], mount);
  }

  bool loses_power() { return (durability_ == Durability::Power || loses_unsynced_) && !choices_.one_in(3); }

  void record() {
    DiskModel disk(disk_options_);
    for (const std::string& path : paths_) disk.put(path, small_archive().content(), kTheirs);
    if (has_sync_state_) disk.put(kDirectoryOfState + "/lock", {}, kTheirs);
    if (has_sync_state_ && !sync_states_.front().empty())
      disk.put(kStatePath, std::as_bytes(std::span(sync_states_.front())), kTheirs);
    disk.observe([this](std::string_view, const DiskImage& image) { remember(image); });
    remember(disk.image());
    const auto process = start_process(disk, 0);
    if (has_company_) {
      Scheduler scheduler(choices_, 1 + choices_.below(6));
      scheduler.add([&] {
        Turn turn(choices_, *process, true);
        InterceptedStorage storage(*process, turn);
        commit_groups(disk, storage);
        process->kill();
      });
      scheduler.add([&] { recover_beside(disk, *process); });
      scheduler.run();
    } else {
      commit_groups(disk, *process);
      process->kill();
    }
    disk.observe({});
    remember(disk.image());
  }

  void remember(const DiskImage& image) { moments_.push_back({image, promised_, begun_}); }

  void commit_groups(DiskModel& disk, Storage& of_process) {
    FaultyStorage storage(of_process);
    if (choices_.one_in(2)) {
      const bool is_for_good = choices_.one_in(3);
      storage.plan().set({.nth = static_cast<unsigned>(1 + choices_.below(250)),
                          .errno_value = choices_.one_in(2) ? EIO : ENOSPC,
                          .kind = {},
                          .is_for_good = is_for_good,
                          .cuts_short = is_for_good && can_be_told_});
    }
    std::vector<std::unique_ptr<Archive>> archives;
    for (const std::string& path : paths_) {
      auto archive = Archive::open(path, Access::ReadWrite, storage);
      if (!archive) return;  // a call has failed
      archives.push_back(std::move(*archive));
    }
    while (begun_ < kGroups) {
      plan_next();
      ++begun_;
      if (auto done = commit(archives); !done) {
        ++counts_.failed;
        break;
      }
      ++counts_.committed;
      promised_ = begun_;
      remember(disk.image());
    }
  }

  /// Recovers any archive, repeatedly, until the committing process has ended. The recovery may run during a
  /// commit.
  void recover_beside(DiskModel& disk, const DiskProcess& writer) {
    while (!writer.is_dead() && !wrong_) {
      const auto process = start_process(disk, 0);
      Turn turn(choices_, *process, false);
      InterceptedStorage storage(*process, turn);
      const std::string& path = paths_[choices_.below(paths_.size())];
      auto file = storage.open(path, Access::ReadWrite);
      const auto recovered = recover(storage, path, **file);
      if (!recovered && recovered.error().code != ErrorCode::Busy)
        wrong_ = "recovery beside a commit fails: " + text_of(recovered.error());
    }
  }

  /// Plans the pieces that the next group writes into each archive, and the contents after the group.
  void plan_next() {
    static constexpr std::array<std::string_view, 4> kNames = {"block", "end", "left", "several_blocks"};
    std::vector<Step> steps;
    std::vector<Content> after;
    for (std::size_t archive = 0; archive < paths_.size(); ++archive) {
      Step step;
      // One archive in four takes no part.
      const bool takes_part = archive == 0 || !choices_.one_in(4);
      for (const std::string_view name : kNames) {
        if (takes_part && choices_.one_in(2)) step.pieces.push_back({name});
      }
      const std::size_t number = 10 * states_.size() + archive;
      after.push_back(step.pieces.empty()
                          ? states_.back()[archive]
                          : content_after(small_archive(), states_.back()[archive], step, number));
      step.is_patch = has_sync_state_ || choices_.one_in(2);
      steps.push_back(std::move(step));
    }
    const bool has_changes =
        std::ranges::any_of(steps, [](const Step& step) { return !step.pieces.empty(); });
    sync_states_.push_back(has_changes ? "version " + std::to_string(states_.size()) : sync_states_.back());
    states_.push_back(std::move(after));
    steps_ = std::move(steps);
  }

  Result<void> commit(const std::vector<std::unique_ptr<Archive>>& archives) {
    const CommitOptions options = commit_options(durability_);
    std::vector<std::unique_ptr<Transaction>> transactions;
    ReaderWriterLock readers;
    const Transaction::LockOf lock_of = [&](TensorId) -> ReaderWriterLock& { return readers; };
    CommitProtocol protocol;
    for (std::size_t at = 0; at < archives.size(); ++at) {
      transactions.push_back(std::make_unique<Transaction>(*archives[at]));
      if (steps_[at].is_patch) {
        auto staged = stage_patches(*transactions.back(), *archives[at], small_archive(), steps_[at].pieces,
                                    10 * (states_.size() - 1) + at, options);
        if (!staged) return staged;
        protocol.add(*transactions.back(), options, lock_of);
        continue;
      }
      for (const Piece& piece : steps_[at].pieces) {
        auto stage = transactions.back()->stage(TensorId{small_archive().position(piece.tensor)});
        if (!stage) return pass_on(std::move(stage));
        const std::size_t number = 10 * (states_.size() - 1) + at;
        if (auto written = (*stage)->write(piece_bytes(small_archive(), piece, number), piece.offset);
            !written)
          return written;
      }
      protocol.add(*transactions.back(), options, lock_of);
    }
    if (has_sync_state_) {
      if (auto replaced = replace_state(transactions); !replaced) return replaced;
    }
    return protocol.commit();
  }

  /// The first transaction with patches also replaces the state.
  Result<void> replace_state(const std::vector<std::unique_ptr<Transaction>>& transactions) const {
    const auto patched = std::ranges::find_if(
        transactions, [](const std::unique_ptr<Transaction>& each) { return each->has_patches(); });
    return patched == transactions.end() ? Result<void>{}
                                         : (*patched)->replace_sync_state(sync_states_.back());
  }

  /// True if the disk has the sync state after this number of groups.
  [[nodiscard]] bool has_state_of(const DiskImage& image, std::size_t group) const {
    if (!has_sync_state_) return true;
    const InodeNumber inode = image.inode_at(kStatePath);
    const auto expected = std::as_bytes(std::span(sync_states_[group]));
    if (inode == 0 || expected.empty()) return inode == 0 && expected.empty();
    return image.has_content(inode, {expected.begin(), expected.end()});
  }

  void crash(const Moment& moment) {
    std::uint64_t boot = 0;
    const auto crashed = [&](const DiskImage& there) {
      if (!loses_power()) return after_kill(there);
      ++boot;
      return after_random_power_loss(there, choices_, disk_options_.has_stale_blocks);
    };
    DiskImage image = crashed(moment.image);
    for (int in_a_row = 0;; ++in_a_row) {
      ++counts_.states;
      counts_.in_recovery += in_a_row > 0;
      DiskModel disk(disk_options_, image);
      std::vector<DiskImage> steps;
      disk.observe([&](std::string_view, const DiskImage& now) { steps.push_back(now); });
      if (!recover_all(disk, boot)) return;
      disk.observe({});
      // Unsynced changes may be there in part, but no file may block the next commit.
      if (durability_ == Durability::Process && boot > 0) {
        if (const auto left = disk.start_process()->list(kDirectory, "."); !left->empty())
          wrong_ = "LEFT BEHIND: " + left->front() + "; " + last_report_;
      } else {
        compare(disk, moment, in_a_row);
      }
      if (wrong_ || in_a_row >= 2 || steps.empty() || choices_.one_in(2)) return;
      const DiskImage& amid = steps[choices_.below(steps.size())];
      image = crashed(amid);
    }
  }

  bool recover_all(DiskModel& disk, std::uint64_t boot) {
    std::vector<std::string> order = paths_;
    std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(choices_.below(order.size())));
    for (const std::string& path : order) {
      const auto process = start_process(disk, boot);
      auto file = process->open(path, Access::ReadWrite);
      const auto recovered = recover(*process, path, **file);
      if (recovered) {
        for (const JournalReport& report : *recovered) {
          last_report_ = report.path.filename().string() + " was " + std::string(name_of(report.state)) +
                         ": " + report.explanation;
        }
        continue;
      }
      wrong_ = "recovery fails: " + text_of(recovered.error());
      return false;
    }
    return true;
  }

  void compare(DiskModel& disk, const Moment& moment, int in_a_row) {
    const DiskImage image = disk.image();
    const auto process = disk.start_process();
    for (std::size_t state = moment.promised; state <= moment.begun; ++state) {
      bool is_it = has_state_of(image, state);
      for (std::size_t at = 0; at < paths_.size(); ++at) {
        is_it = is_it && image.has_content(image.inode_at(paths_[at]), states_[state][at]);
      }
      if (!is_it) continue;
      if (const auto left = process->list(kDirectory, "."); !left->empty()) {
        wrong_ = "LEFT BEHIND: " + left->front() + "; " + last_report_;
      }
      return;
    }
    wrong_ = "TORN or LOST after " + std::to_string(in_a_row) + " crashes of recovery:";
    for (std::size_t at = 0; at < paths_.size(); ++at) {
      *wrong_ += " " + paths_[at] + " is";
      for (std::size_t state = 0; state < states_.size(); ++state) {
        if (image.has_content(image.inode_at(paths_[at]), states_[state][at]))
          *wrong_ += " " + std::to_string(state);
      }
      *wrong_ += ";";
    }
    *wrong_ += " promised " + std::to_string(moment.promised) + ", begun " + std::to_string(moment.begun);
  }

  GroupCounts& counts_;
  RandomChoices choices_;
  DiskOptions disk_options_;
  bool has_edges_ = false;
  // False if several hosts commit with durability=process. Then a partly written block looks like damage to
  // other hosts, which refuse to recover.
  bool can_be_told_ = true;
  bool has_company_ = false;  // another process recovers while the groups are committed
  std::vector<DiskUser> users_ = {{}};
  std::vector<DiskMount> mounts_;
  Durability durability_ = Durability::Power;
  bool loses_unsynced_ = false;  // the power may be lost, with durability=process
  std::vector<std::string> paths_;
  std::vector<std::vector<Content>> states_;  // of all archives, at the beginning and after each group
  std::vector<Step> steps_;                   // of the present group
  bool has_sync_state_ = false;               // all groups are patches, and replace the sync state
  std::vector<std::string> sync_states_;      // as states_; empty: there is no file
  std::vector<Moment> moments_;
  std::size_t promised_ = 0;
  std::size_t begun_ = 0;
  std::string last_report_;
  std::optional<std::string> wrong_;
};

}  // namespace

std::optional<std::string> run_groups(std::uint64_t seed, GroupCounts& counts, GroupWorld world) {
  return GroupRun(seed, counts, world).run();
}

}  // namespace stfs::test
