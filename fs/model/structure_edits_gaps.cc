// Closes the gaps that edits of this mount have left (structure_edits.h). Each step of a compaction is an
// edit that moves tensors (core/commit/compaction.h). Programs may read during the move: until they know the
// new places, reads of the old places get their bytes from the new places (Archive::show_moved()).
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/cancellation.h"
#include "core/base/shell_word.h"
#include "core/commit/compaction.h"
#include "fs/base/log.h"
#include "fs/model/mounted_model.h"

namespace stfs {
namespace {

bool has_filler(const ArchiveVersion& version) {
  return !version.header->content.fillers.empty();
}

void log_fillers(const ArchiveVersion& version, const std::string& path, std::string_view why) {
  std::uint64_t left_bytes = 0;
  for (const ByteRange filler : version.header->content.fillers) left_bytes += filler.size_bytes;
  log::warning(
      "{}: {} bytes stay as tensors {}N, which other programs show: {}. `stfs compact {}` removes them", path,
      left_bytes, kFillerPrefix, why, shell_word(path));
}

}  // namespace

void StructureEdits::log_found_gaps() const {
  if (mounted_.options_.is_read_only) return;
  for (const std::uint32_t shard : shards_to_edit()) {
    const ArchiveVersion& version = mounted_.model().version(shard);
    if (has_filler(version))
      log_fillers(version, mounted_.model().reader(shard).path().string(), "an earlier edit has left them");
  }
}

void StructureEdits::close_gaps(bool is_end) {
  std::map<std::uint32_t, std::uint64_t> shards;
  {
    const MutexLock structure(mutex_);
    shards = edited_shards_;
  }
  for (const auto& [shard, edits] : shards) {
    // No pin is held between two steps, because a pin would keep the model that each step makes.
    const auto archive_now = [&, at = shard]() -> const Archive& {
      const Snapshot::Pin pin = mounted_.snapshots_.pin();
      return mounted_.model().archive(at);  // all models of the mount share it
    };
    const Archive& archive = archive_now();
    std::uint64_t steps = 0;
    const auto closed =
        guard_memory([&, at = shard]() -> Result<void> { return close_gaps_of(at, archive, is_end, steps); });
    const std::string path = archive.path().string();
    if (steps > 0) {
      log::info("{}: closed the gaps of deleted tensors", path);
      if (!is_end) mounted_.wake_janitor_();
    }
    const bool is_over = closed || closed.error().code != ErrorCode::Busy;
    const bool is_foreign = !closed && closed.error().code == ErrorCode::ArchiveChanged;  // not our fillers
    const auto version = archive.version();
    if ((is_over || is_end) && !is_foreign && has_filler(*version)) {
      log_fillers(*version, path, closed ? "closing the gap would move too much" : closed.error().message);
    }
    const MutexLock structure(mutex_);
    // If the counts differ, another edit has run, and the next call checks its gaps.
    if (is_over && edited_shards_[shard] == edits + steps) edited_shards_.erase(shard);
  }
}

Result<void> StructureEdits::close_gaps_of(std::uint32_t shard, const Archive& archive, bool is_end,
                                           std::uint64_t& steps) {
  const auto version = archive.version();
  if (!has_filler(*version)) return {};
  if (!mounted_.options_.closes_gaps)
    return fail(ErrorCode::InvalidArgument, EOPNOTSUPP, "compact=off was given");
  const auto check = [this, shard, is_end]() -> Result<void> {
    if (is_end) return {};
    if (Cancellation::is_end()) return fail(ErrorCode::Busy, EBUSY, "the mount ends");
    return check_waiting(shard);
  };
  auto forecast = forecast_compaction(*version, Gaps::Cheap, check);
  RETURN_IF_ERROR(forecast);
  GapPlan plan{.left = std::move(forecast->left), .header = version->header, .check = check};
  while (steps < forecast->steps) {
    Outdated outdated;
    const auto closed = close_gap(shard, is_end, plan, outdated);
    mounted_.tell_outdated_(outdated);
    RETURN_IF_ERROR(closed);
    if (!*closed) break;
    ++steps;
  }
  return {};
}

Result<bool> StructureEdits::close_gap(std::uint32_t shard, bool is_end, GapPlan& plan, Outdated& outdated) {
  const Snapshot::Pin pin = mounted_.snapshots_.pin();
  const MutexLock structure(mutex_);
  Archive& archive = mounted_.model().archive(shard);
  const bool has_kept_bytes = std::ranges::any_of(
      mounted_.model().removed(), [&](const auto& removed) { return removed.second.place.shard == shard; });
  if (has_kept_bytes && !is_end)
    return fail(ErrorCode::Busy, EBUSY, "a program still has a deleted tensor open");
  if (archive.version()->header != plan.header)
    return fail(ErrorCode::Busy, EBUSY, "a program has changed the model");
  bool is_closed = false;
  ShardWriter writer(mounted_, {shard});
  const auto attempt = [&]() REQUIRES(mutex_) -> Result<void> {
    mounted_.committers_.of(shard).retire_journal();
    auto edit = ModelEdit::of(mounted_.model());
    RETURN_IF_ERROR(edit);
    const auto begun = edit->begin_compaction(shard, plan.left, plan.check);
    RETURN_IF_ERROR(begun);
    if (!*begun) return {};
    RETURN_IF_ERROR(check_alone(archive, mounted_.options_.commit.uses_locks));
    const auto with_stop = [&](std::uint32_t at) {
      auto options = writer.options(at);
      if (options && !is_end)
        options->on_copy = [this, shard](std::uint64_t) { return check_waiting(shard); };
      return options;
    };
    for (const FixedEntry& entry : Views::kEntries) {
      if (Views::whole(entry.ino))
        outdated.entries.emplace_back(mounted_.space_.in_mount(kHiddenIno), entry.name);
    }
    auto committed = commit_edit(*edit, {.touched = {}, .apply = {}}, with_stop);
    is_closed = committed.has_value();
    return committed;
  };
  // Tries only once, because the lock that is in the way may stay for days.
  Result<void> done;
  while (writer.take_turns()) {
    done = guard_memory(attempt);
    writer.end_attempt({});
  }
  for (const auto& [changed, others] : writer.foreign()) mounted_.tell_stale_(others);
  RETURN_IF_ERROR(done);
  plan.header = archive.version()->header;
  return is_closed;
}

Result<void> StructureEdits::check_waiting(std::uint32_t shard) const {
  if (waiting_edits_ == 0 && !mounted_.committers_.of(shard).is_waited_for()) return {};
  return fail(ErrorCode::Busy, EBUSY, "a program changes the model");
}

}  // namespace stfs
