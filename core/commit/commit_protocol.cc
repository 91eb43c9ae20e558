// Takes the steps of a commit, as commit_protocol.h numbers them.
#include "core/commit/commit_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "core/base/wall_clock.h"
#include "core/commit/block_evidence.h"
#include "core/journal/group_record.h"
#include "core/journal/journal_apply.h"

namespace stfs {
namespace {

// Smaller journals are closed at once.
constexpr std::uint64_t kSlowCloseBytes = 16 << 20;

/// Returns a larger number than any earlier commit of the archive has. Their numbers came from the same
/// clock, or from the archive's mtime if it was ahead of the clock. `last` covers this process's own commits.
std::uint64_t next_sequence(std::int64_t archive_mtime_ns) {
  static std::atomic<std::uint64_t> last = 0;
  const auto least = static_cast<std::uint64_t>(std::max(wall_clock_ns(Clock::Fine), archive_mtime_ns + 1));
  std::uint64_t before = last.load();
  std::uint64_t next = 0;
  do {
    next = std::max(least, before + 1);
  } while (!last.compare_exchange_weak(before, next));
  return next;
}

}  // namespace

void CommitProtocol::add(Transaction& transaction, const CommitOptions& options,
                         const Transaction::LockOf& lock_of) {
  parts_.push_back({.transaction = &transaction,
                    .options = &options,
                    .lock_of = &lock_of,
                    .plan = {},
                    .locks = {},
                    .readers = {},
                    .stopped = {}});
}

Result<void> CommitProtocol::commit() {
  return guard_memory([this] { return commit_unguarded(); });
}

Result<void> CommitProtocol::commit_unguarded() {
  std::ranges::sort(parts_, {}, [](const Part& part) { return part.archive().real_path(); });
  std::vector<Part*> changed;
  for (Part& part : parts_) {
    if (auto prepared = prepare(part); !prepared) return prepared;
    if (!part.plan.is_empty()) changed.push_back(&part);
  }
  if (auto executed = execute(changed); !executed) return executed;
  for (Part& part : parts_) end_stages(part);
  return {};
}

Result<void> CommitProtocol::execute(const std::vector<Part*>& parts) {
  if (parts.empty()) return {};
  Archive& first = parts.front()->archive();
  const std::filesystem::path directory = first.real_path().parent_path();
  const Durability durability = parts.front()->durability();
  std::optional<GroupRecord> group_record;
  if (parts.size() > 1) {
    for (const Part* part : parts) {
      const std::filesystem::path& path = part->archive().real_path();
      if (path.parent_path() == directory) continue;
      return fail(ErrorCode::InvalidArgument, EOPNOTSUPP,
                  fmt::format("{} and {} lie in different directories: one transaction cannot change both",
                              first.real_path().string(), path.string()));
    }
    auto created = GroupRecord::create(first.storage(), first.real_path());
    if (!created) return pass_on(std::move(created));
    group_record = std::move(*created);
  }

  // Seal all journals before any is published: a full disk fails here, before any file has a name.
  std::vector<std::string> journals;
  for (Part* part : parts) {
    if (auto sealed = seal(*part, group_record ? group_record->name() : ""); !sealed) return sealed;
    if (group_record) journals.push_back(part->journal().path().filename().string());
  }
  if (group_record) {
    if (auto sealed = group_record->seal(journals, durability); !sealed) return sealed;
  }

  // Nothing from here on needs memory outside of its own guard: the commit may have happened.
  Result<void> done;
  std::size_t published = 0;
  while (done && published < parts.size()) {
    done = publish(*parts[published]);
    if (done) ++published;
  }
  if (done && group_record) done = group_record->publish(durability);
  if (!done) {
    for (std::size_t at = 0; at < published; ++at) withdraw(*parts[at], done.error());
    return done;
  }

  for (Part* part : parts) {
    auto finished = apply(*part);
    if (finished) finished = retire(*part);
    if (finished) end_stages(*part);
    part->locks.release();
    if (!finished && done) done = std::move(finished);
  }
  // After a failure the group record stays: the journals that are left are committed by it. A group record
  // without journals says nothing, so failing to remove it is no error: recovery removes it.
  if (done && group_record) static_cast<void>(group_record->remove());
  return done;
}

Result<void> CommitProtocol::prepare(Part& part) {
  Archive& archive = part.archive();
  const Transaction& transaction = *part.transaction;
  if (auto resumed = archive.resume_writing(); !resumed) return resumed;
  if (auto writable = archive.check_writable(); !writable) return writable;
  if (transaction.journal_ && transaction.journal_->spoiled())
    return tl::unexpected(*transaction.journal_->spoiled());
  if (auto sizes = transaction.check_sizes(); !sizes) return sizes;
  std::vector<Staging*> stages;
  for (const auto& [tensor, stage] : transaction.stages_) {
    if (!stage->is_dirty()) continue;
    stages.push_back(stage.get());
    part.readers.add((*part.lock_of)(tensor));
  }
  if (stages.empty()) return {};
  std::ranges::sort(stages, {}, [](const Staging* stage) { return stage->target().offset; });

  auto plan = CommitPlan::make(archive.stamp(), archive.file().most_range_bytes(), stages);
  if (!plan) return pass_on(std::move(plan));
  part.plan = std::move(*plan);
  if (part.plan.is_empty()) return {};
  auto locks = lock_for_commit(archive, part.plan.locks(), *part.options);
  if (!locks) return pass_on(std::move(locks));
  part.locks = std::move(*locks);
  if (auto same = check_archive(archive, *part.options); !same) return same;
  if (auto completed = part.plan.complete_blocks(archive.file(), part.journal()); !completed)
    return completed;
  // Allocate now what a failure after the commit point will need.
  archive.overlay().reserve();
  part.readers.make_ready();
  return {};
}

Result<void> CommitProtocol::seal(Part& part, std::string group_record) {
  Archive& archive = part.archive();
  Journal& journal = part.journal();
  const CommitOptions& options = *part.options;
  const bool goes_through_lanes = journal.is_in_memory() && group_record.empty();
  // This commit takes long. Settle first: meanwhile nobody settles the other journals.
  if (!goes_through_lanes && options.settle_others) options.settle_others();
  const std::filesystem::path& path = goes_through_lanes ? archive.lane_journal().path() : journal.path();
  part.stopped = {
      ErrorCode::System, EIO,
      fmt::format(
          "the change is committed in {} and this mount shows it; the archive takes no more writes until "
          "`stfs recover {}` has finished it",
          path.empty() ? "a journal" : path.string(), archive.path().string())};
  // Recovery will compare the archive's blocks with this commit's old and new ones. An older state that a
  // power loss brings back would be neither.
  const bool are_blocks_asked = goes_through_lanes || part.plan.before().birth_ns == 0;
  if (are_blocks_asked && part.durability() == Durability::Power) {
    if (auto synced = archive.sync_what_others_wrote(); !synced) return synced;
  }
  JournalRecord record{.id = {},
                       .archive = part.plan.before(),
                       .sequence = next_sequence(archive.identity().mtime_ns),
                       .owner_pid = 0,
                       .group_record = std::move(group_record),
                       .boot = {},
                       .ranges = part.plan.operations()};
  if (auto shared = share_old_blocks(record.ranges, archive.file(), journal); !shared) return shared;
  const std::uint64_t total = part.plan.size_bytes();
  std::uint64_t hashed = 0;
  const auto count = [&](std::uint64_t bytes) {
    hashed += bytes;
    if (options.on_progress) options.on_progress(hashed / 2, total);  // the first half
  };
  const auto hash = [&](JournalRange& range) {
    return hash_range(range, archive.file(), journal.file(), part.transaction->stages_, count);
  };
  auto done = journal.seal(std::move(record), part.durability(), hash, &archive.lane_journal());
  if (!done && done.error().code == ErrorCode::CommitUnknown)
    archive.stop_writing(done.error(), journal.path());
  return done;
}

Result<void> CommitProtocol::publish(Part& part) {
  auto done = part.journal().publish(part.durability());
  if (!done && done.error().code == ErrorCode::CommitUnknown)
    part.archive().stop_writing(done.error(), part.journal().path());
  return done;
}

void CommitProtocol::withdraw(Part& part, const Error& why) {
  // If the group record may exist after a crash, its journals must exist too.
  if (why.code == ErrorCode::CommitUnknown) {
    part.archive().stop_writing(why, part.journal().path());
  } else {
    part.journal().take_back(part.durability());
  }
}

Result<void> CommitProtocol::apply(Part& part) {
  Archive& archive = part.archive();
  const CommitOptions& options = *part.options;
  const std::vector<JournalRange>& operations = part.plan.operations();
  const std::uint64_t total = part.plan.size_bytes();
  std::uint64_t done = 0;
  // Others write to other blocks meanwhile. Their writes must not count as ours, or readers here would never
  // see them. Only writes that come during our own writes can't be told apart.
  const bool is_known = archive.is_as_known();
  auto applied = guard_memory([&] {
    // Writing waits for the disk when too many pages are dirty. Readers do not wait.
    part.readers.during([&] { archive.overlay().show_while_applied({&part.journal().file(), operations}); });
    return apply_ranges(archive.file(), part.journal().file(), operations, [&](std::uint64_t bytes) {
      done += bytes;
      if (options.on_progress) options.on_progress(total / 2 + done / 2, total);
    });
  });
  const auto written = archive.file().status();
  if (!applied) return stop(std::move(applied).error(), part);
  if (!written) return stop(written.error(), part);
  part.readers.during([&] { archive.overlay().show_while_applied({}); });
  auto settled = guard_memory([&]() -> Result<void> {
    if (part.durability() == Durability::Power) {
      if (auto synced = archive.sync(); !synced) return synced;
    }
    return is_known ? archive.adopt_own_change(written->identity) : Result<void>{};
  });
  return settled ? settled : stop(std::move(settled).error(), part);
}

Result<void> CommitProtocol::retire(Part& part) {
  // Recovery would apply a journal that stays again, over newer commits.
  auto retired = guard_memory([&] { return part.journal().retire(part.durability()); });
  if (!retired) return stop(std::move(retired).error(), part);
  if (part.plan.size_bytes() <= kLaneBlocks * kBlockBytes && !part.journal().is_in_memory())
    part.archive().lane_journal().note_small_commit();
  return {};
}

Result<void> CommitProtocol::stop(Error why, Part& part) {
  Archive& archive = part.archive();
  Transaction& transaction = *part.transaction;
  // stop() must not need memory up to its last step.
  part.stopped.code = why.code;
  part.stopped.errno_value = why.errno_value;
  std::filesystem::path journal = transaction.journal_->take_path();
  if (part.options->before_stages_end) part.options->before_stages_end();
  // Readers switch from the temporary view of the journal to the lasting one.
  part.readers.during([&] {
    archive.overlay().add({transaction.journal_->give_up(), std::move(part.plan).take_operations()});
    archive.overlay().show_while_applied({});
  });
  archive.stop_writing(std::move(part.stopped), std::move(journal));
  transaction.stages_.clear();
  transaction.journal_.reset();
  // Tell the caller that the change is not undone. Without memory the caller gets only the reason.
  static_cast<void>(guard_memory([&] {
    auto stopped = archive.check_writable();
    if (!stopped) why.message = fmt::format("{}; {}", why.message, stopped.error().message);
    return stopped;
  }));
  return tl::unexpected(std::move(why));
}

void CommitProtocol::end_stages(Part& part) {
  Transaction& transaction = *part.transaction;
  if (transaction.is_empty()) return;
  if (part.options->before_stages_end) part.options->before_stages_end();
  transaction.stages_.clear();
  if (transaction.journal_ && transaction.journal_->size_bytes() >= kSlowCloseBytes) {
    while (auto file = transaction.journal_->take_file()) part.archive().discard(std::move(file));
  }
  transaction.journal_.reset();
}

}  // namespace stfs
