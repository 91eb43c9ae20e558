// Closes the gaps that edits of this mount have left (structure_edits.h), a step of a compaction at a time:
// each is an edit that moves tensors (core/commit/compaction.h). Programs read on meanwhile: until they know
// the new places, reads of the old ones get their bytes from there (Archive::show_moved()).
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/shell_word.h"
#include "core/commit/compaction.h"
#include "fs/base/log.h"
#include "fs/model/structure_edits.h"

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
  if (parts_.options.is_read_only) return;
  for (const std::uint32_t shard : shards_to_edit()) {
    const ArchiveVersion& version = parts_.model->version(shard);
    if (has_filler(version))
      log_fillers(version, parts_.model->reader(shard).path().string(), "an earlier edit has left them");
  }
}

void StructureEdits::close_gaps(bool is_end) {
  std::map<std::uint32_t, std::uint64_t> shards;
  {
    const MutexLock structure(mutex_);
    shards = edited_shards_;
  }
  for (const auto& [shard, edits] : shards) {
    std::uint64_t steps = 0;
    const auto closed =
        guard_memory([&, at = shard]() -> Result<void> { return close_gaps_of(at, is_end, steps); });
    const Archive& archive = parts_.model->archive(shard);
    const std::string path = archive.path().string();
    if (steps > 0) {
      log::info("{}: closed the gaps of deleted tensors", path);
      if (!is_end) parts_.wake_janitor();
    }
    const bool is_over = closed || closed.error().code != ErrorCode::Busy;
    const bool is_foreign = !closed && closed.error().code == ErrorCode::ArchiveChanged;  // not our fillers
    const auto version = archive.version();
    if ((is_over || is_end) && !is_foreign && has_filler(*version)) {
      log_fillers(*version, path, closed ? "closing the gap would move too much" : closed.error().message);
    }
    const MutexLock structure(mutex_);
    // Else another edit has come: the next call looks at its gaps.
    if (is_over && edited_shards_[shard] == edits + steps) edited_shards_.erase(shard);
  }
}

Result<void> StructureEdits::close_gaps_of(std::uint32_t shard, bool is_end, std::uint64_t& steps) {
  const auto version = parts_.model->archive(shard).version();
  if (!has_filler(*version)) return {};
  if (!parts_.options.closes_gaps)
    return fail(ErrorCode::InvalidArgument, EOPNOTSUPP, "compact=off was given");
  const auto forecast = forecast_compaction(*version, Gaps::Cheap);
  if (!forecast) return tl::unexpected(forecast.error());
  while (steps < forecast->steps) {
    Outdated outdated;
    const auto closed = close_gap(shard, is_end, outdated);
    parts_.tell_outdated(outdated);
    if (!closed) return tl::unexpected(closed.error());
    if (!*closed) break;
    ++steps;
  }
  return {};
}

Result<bool> StructureEdits::close_gap(std::uint32_t shard, bool is_end, Outdated& outdated) {
  const Epochs::Pin pin = parts_.epochs.pin();
  const MutexLock structure(mutex_);
  Archive& archive = parts_.model->archive(shard);
  const bool has_kept_bytes = std::ranges::any_of(
      parts_.model->removed(), [&](const auto& removed) { return removed.second.place.shard == shard; });
  if (has_kept_bytes && !is_end)
    return fail(ErrorCode::Busy, EBUSY, "a program still has a deleted tensor open");
  bool is_closed = false;
  ShardWriter writer(parts_, foreign_, {shard});
  const auto attempt = [&]() REQUIRES(mutex_) -> Result<void> {
    parts_.committers.of(shard).retire_journal();
    auto edit = ModelEdit::of(*parts_.model);
    if (!edit) return pass_on(std::move(edit));
    const auto begun = edit->begin_compaction(shard, Gaps::Cheap);
    if (!begun) return tl::unexpected(begun.error());
    if (!*begun) return {};
    if (auto alone = check_alone(archive, parts_.options.commit.uses_locks); !alone) return alone;
    const auto with_stop = [&](std::uint32_t at) {
      auto options = writer.options(at);
      if (options && !is_end) {
        options->on_copy = [this, shard](std::uint64_t) -> Result<void> {
          if (!is_waited_for(shard)) return {};
          return fail(ErrorCode::Busy, EBUSY, "a program changes the model");
        };
      }
      return options;
    };
    for (const FixedEntry& entry : Views::kEntries) {
      if (Views::whole(entry.ino))
        outdated.entries.emplace_back(parts_.space.in_mount(kHiddenIno), entry.name);
    }
    auto committed = commit_edit(*edit, {.touched = {}, .apply = {}}, with_stop);
    is_closed = committed.has_value();
    return committed;
  };
  // Not again and again: what is in the way may stay there for days.
  Result<void> done;
  while (writer.take_turns()) {
    done = guard_memory(attempt);
    writer.end_attempt({});
  }
  for (const auto& [changed, others] : writer.foreign()) parts_.forget(others);
  if (!done) return tl::unexpected(std::move(done).error());
  return is_closed;
}

bool StructureEdits::is_waited_for(std::uint32_t shard) const {
  return waiting_edits_ > 0 || parts_.committers.of(shard).is_waited_for();
}

}  // namespace stfs
