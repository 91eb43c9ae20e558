#include "tests/crash/fault_run.h"

#include <algorithm>
#include <memory>
#include <new>
#include <set>

#include "core/journal/recovery.h"
#include "tests/crash/crash_run.h"
#include "tests/support/allocation_faults.h"
#include "tests/support/disk_crash.h"
#include "tests/support/plain.h"

namespace stfs::test {
namespace {

constexpr unsigned kCrashes = 4;
constexpr unsigned kCrashesAfterSync = 16;  // after a failed sync, the disk can have many states

/// The contents that the archive may have: each failed step may have been done or not. Copies share the
/// contents, because every snapshot makes a copy.
class Possible {
 public:
  explicit Possible(const TestArchive& archive)
      : archive_(archive), contents_({{std::make_shared<const Content>(archive.content()), {}}}) {}

  void begin(const Step& step, std::uint64_t number) {
    const std::size_t before = contents_.size();
    for (std::size_t at = 0; at < before; ++at) {
      Known next = contents_[at];
      next.content = std::make_shared<const Content>(content_after(archive_, *next.content, step, number));
      next.steps.insert(number);
      contents_.push_back(std::move(next));
    }
  }
  /// The step was done.
  void succeed(std::uint64_t number) {
    std::erase_if(contents_, [&](const Known& known) { return !known.steps.contains(number); });
  }

  [[nodiscard]] bool has(const DiskImage& image) const {
    return std::ranges::any_of(contents_, [&](const Known& known) {
      return image.has_content(image.inode_at(kArchivePath), *known.content);
    });
  }
  [[nodiscard]] bool has(const Content& content) const {
    return std::ranges::any_of(contents_,
                               [&](const Known& known) { return are_same(*known.content, content); });
  }

 private:
  struct Known {
    std::shared_ptr<const Content> content;
    std::set<std::uint64_t> steps;  // the steps that were done
  };
  const TestArchive& archive_;
  std::vector<Known> contents_;
};

/// The disk at a moment, and every content that was possible then.
struct Snapshot {
  DiskImage image;
  Possible possible;
};

/// The disk when the first step's journal was committed and its owner killed.
DiskImage with_dead_journal(const Workload& workload) {
  const History history = record(workload);
  if (workload.keeps_journal) {
    return after_kill(std::ranges::find(history.moments, "commit returns", &Moment::what)->image);
  }
  const auto published = std::ranges::find(history.moments, "publish", &Moment::what);
  const bool is_synced = workload.durability == Durability::Power;
  const auto committed =
      is_synced ? std::ranges::find(published, history.moments.end(), "sync directory", &Moment::what)
                : published;
  return after_kill(committed->image);
}

class OrdealRun {
 public:
  OrdealRun(const Workload& workload, const Ordeal& ordeal, std::uint64_t seed)
      : workload_(workload),
        ordeal_(ordeal),
        choices_(seed),
        disk_(workload.disk, ordeal.finds_journal ? with_dead_journal(workload) : DiskImage()),
        possible_(*workload.archive) {}

  OrdealReport run() {
    if (!ordeal_.finds_journal) put_archive(disk_, *workload_.archive);
    if (ordeal_.finds_journal) possible_.begin(workload_.steps.front(), 0);
    if (ordeal_.finds_journal) possible_.succeed(0);
    process_ = disk_.start_process();
    {
      FaultyStorage storage(*process_);
      disk_.observe([&](std::string_view, const DiskImage& image) {
        if (has_been_hit(storage.plan())) snapshots_.push_back({image, possible_});
      });
      storage.plan().set(ordeal_.fault);
      Writer writer(storage, *workload_.archive, commit_options(workload_.durability),
                    workload_.keeps_journal);
      if (ordeal_.nth_allocation == 0 && writer.open()) look_through(writer, "it has just been opened", true);
      for (std::size_t number = ordeal_.finds_journal; number < workload_.steps.size() && !report_.wrong;
           ++number) {
        run_step(writer, number, storage.plan());
      }
      note_hit(storage.plan());
      storage.plan().set({});
      if (!report_.wrong) look_through(writer, "the fault is gone");
      disk_.observe({});
      if (!report_.wrong) crash();
    }
    if (!report_.wrong && disk_.has_locks_held())
      report_.wrong = "a lock is held after everything was closed";
    process_->kill();
    if (!report_.wrong) recover_in(after_kill(disk_.image()), possible_, "recovered in peace");
    return std::move(report_);
  }

 private:
  [[nodiscard]] bool has_been_hit(const FaultPlan& plan) const {
    return ordeal_.nth_allocation == 0 ? plan.failed_call().has_value() : AllocationFaults::has_failed();
  }

  void note_hit(const FaultPlan& plan) {
    if (ordeal_.nth_allocation != 0) return;
    const auto call = plan.failed_call();
    report_.was_hit = call.has_value();
    if (call) report_.hit = std::string(name_of(call->kind)) + " of the " + std::string(name_of(call->role));
  }

  /// Runs the step. Counts an escaped std::bad_alloc, and makes it an error.
  Result<void> run_guarded(Writer& writer, const Step& step, std::size_t number) {
    if (ordeal_.nth_allocation == 0) return writer.run(step, number, ordeal_.retries);
    const AllocationFaults faults(ordeal_.nth_allocation, ordeal_.allocations_fail_for_good);
    try {
      auto done = writer.run(step, number, ordeal_.retries);
      report_.was_hit = report_.was_hit || AllocationFaults::has_failed();
      return done;
    } catch (const std::bad_alloc&) {
      report_.was_hit = true;
      ++report_.escaped_exceptions;
      return fail(ErrorCode::OutOfMemory, ENOMEM, "std::bad_alloc");
    }
  }

  void run_step(Writer& writer, std::size_t number, const FaultPlan& plan) {
    const Step& step = workload_.steps[number];
    const auto note_failed_sync = [&] {
      const auto failed = plan.failed_call();
      if (failed && failed->kind == FileCall::Sync && failed->role == FileRole::Archive)
        archive_sync_failed_ = true;
    };
    const auto note_unprovoked = [&](const Result<void>& done) {
      // A step may hide a fault if it is done; the crashes below check that.
      if (!done && !has_been_hit(plan) && !report_.was_hit)
        report_.wrong = "failed without a fault: " + text_of(done.error());
    };
    bool was_broken = archive_sync_failed_;
    possible_.begin(step, number);
    writer.note_beside({.begins =
                            [&] {
                              const NoAllocationFaults pause;
                              possible_.begin(beside_of(step), number + kBeside);
                              return number + kBeside;
                            },
                        .ends =
                            [&](const Result<void>& inner) {
                              const NoAllocationFaults pause;
                              if (inner) possible_.succeed(number + kBeside);
                              note_failed_sync();
                              was_broken = archive_sync_failed_;
                              note_unprovoked(inner);
                            }});
    const auto done = run_guarded(writer, step, number);
    if (done) possible_.succeed(number);
    // A failed sync in a recovery does not matter: the next attempt writes every block again.
    if (done && was_broken && !step.reopens && !ordeal_.finds_journal) {
      report_.wrong = "step " + std::to_string(number) + " was committed after a failed sync of the archive";
    }
    note_failed_sync();
    note_unprovoked(done);
  }

  /// Checks all bytes that readers of this archive object see.
  void look_through(Writer& writer, std::string_view when, bool may_fail = false) {
    if (auto opened = writer.open(); !opened) {
      report_.wrong = std::string(when) + ", opening fails: " + text_of(opened.error());
      return;
    }
    std::vector<std::byte> scratch;
    const auto read = writer.archive().read({0, workload_.archive->content().size()}, scratch);
    if (!read && may_fail) return;
    if (!read) {
      report_.wrong = std::string(when) + ", reading fails: " + text_of(read.error());
    } else if (!possible_.has(Content(read->begin(), read->end()))) {
      report_.wrong = "TORN or LOST in what this archive's readers see when " + std::string(when);
    }
  }

  void crash() {
    const bool survives_power = workload_.durability == Durability::Power;
    const bool is_sync = report_.hit.starts_with("sync");
    for (unsigned times = 0; times < (is_sync ? kCrashesAfterSync : kCrashes) && !report_.wrong; ++times) {
      const bool at_the_end = snapshots_.empty() || times == 0;
      const Snapshot snapshot =
          at_the_end ? Snapshot{disk_.image(), possible_} : snapshots_[choices_.below(snapshots_.size())];
      const DiskImage left =
          survives_power ? after_random_power_loss(snapshot.image, choices_) : after_kill(snapshot.image);
      recover_in(left, snapshot.possible, survives_power ? "power lost" : "killed");
    }
  }

  void recover_in(const DiskImage& image, const Possible& possible, std::string_view how) {
    ++report_.crashes;
    DiskModel disk(workload_.disk, image);
    const auto process = disk.start_process();
    auto file = process->open(kArchivePath, Access::ReadWrite);
    if (!file) {
      report_.wrong = std::string(how) + ": the archive is gone";
      return;
    }
    const auto recovered = recover(*process, kArchivePath, **file);
    if (!recovered) {
      report_.wrong = std::string(how) + ": recovery failed: " + text_of(recovered.error());
    } else if (!possible.has(disk.image())) {
      report_.wrong = std::string(how) + ": TORN or LOST";
    } else if (const auto left = process->list(kDirectory, "."); !left->empty()) {
      report_.wrong = std::string(how) + ": LEFT BEHIND: " + left->front() + ": " +
                      (recovered->empty() ? "" : recovered->front().explanation);
    }
  }

  const Workload& workload_;
  const Ordeal& ordeal_;
  RandomChoices choices_;
  DiskModel disk_;
  std::unique_ptr<DiskProcess> process_;
  Possible possible_;
  std::vector<Snapshot> snapshots_;  // after every change since the fault
  bool archive_sync_failed_ = false;
  OrdealReport report_;
};

}  // namespace

const std::vector<FaultKind>& fault_kinds() {
  static const std::vector<FaultKind> list = {
      {"EIO once", {.fault = {.errno_value = EIO, .kind = {}}}},
      {"EIO once, tried again", {.fault = {.errno_value = EIO, .kind = {}}, .retries = 2}},
      {"EIO for good", {.fault = {.errno_value = EIO, .kind = {}, .is_for_good = true}}},
      {"cut short once", {.fault = {.errno_value = EIO, .kind = {}, .cuts_short = true}}},
      {"cut short once, tried again",
       {.fault = {.errno_value = EIO, .kind = {}, .cuts_short = true}, .retries = 1}},
      {"ENOSPC once", {.fault = {.errno_value = ENOSPC, .kind = {}, .only_changes = true}, .retries = 1}},
      {"ENOSPC for good",
       {.fault = {.errno_value = ENOSPC,
                  .kind = {},
                  .only_changes = true,
                  .is_for_good = true,
                  .cuts_short = true}}},
      {"EDQUOT for good, tried again",
       {.fault = {.errno_value = EDQUOT, .kind = {}, .only_changes = true, .is_for_good = true},
        .retries = 2}},
      {"ENOMEM once", {.fault = {.errno_value = ENOMEM, .kind = {}}}},
      {"syncs fail for good",
       {.fault = {.errno_value = EIO, .kind = FileCall::Sync, .is_for_good = true}, .retries = 1}},
      {"one sync fails", {.fault = {.errno_value = EIO, .kind = FileCall::Sync}, .retries = 1}},
      {"syncs of the directory fail for good",
       {.fault = {.errno_value = EIO, .kind = FileCall::SyncDirectory, .is_for_good = true}, .retries = 1}},
      {"one sync of the directory fails",
       {.fault = {.errno_value = EIO, .kind = FileCall::SyncDirectory}, .retries = 1}},
      {"removing fails for good",
       {.fault = {.errno_value = EIO, .kind = FileCall::Remove, .is_for_good = true}}},
  };
  return list;
}

OrdealReport endure(const Workload& workload, const Ordeal& ordeal, std::uint64_t seed) {
  return OrdealRun(workload, ordeal, seed).run();
}

}  // namespace stfs::test
