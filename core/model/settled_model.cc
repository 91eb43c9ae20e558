#include "core/model/settled_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/wall_clock.h"
#include "core/journal/file_lock.h"
#include "core/journal/journal_format.h"
#include "core/journal/journal_scan.h"

namespace stfs {
namespace {

/// A time that is further ahead comes from the clock of another host, or from touch(1).
constexpr std::int64_t kLongestTickNs = 20'000'000;

tl::unexpected<Error> unsettled(const Archive& archive, std::string_view why) {
  return fail(ErrorCode::Busy, EAGAIN, fmt::format("{}: {}", archive.path().string(), why));
}

/// Returns true if a commit is being applied to the archive. A process that dies loses the locks of archives
/// first, and only then other processes see its journals as committed. A lane journal stays in use between
/// commits.
bool is_being_applied(const Archive& archive) {
  const auto found = scan_journals(archive.storage(), archive.real_path(), *archive.local_file());
  // If the journals cannot be listed, no reader finds commits.
  return found && std::ranges::any_of(*found, [](const FoundJournal& journal) {
           return journal.is_in_use && !journal.is_lane_journal && !journal.record.ranges.empty();
         });
}

Result<void> check_settled(const Archive& archive) {
  if (ArchiveLocks::is_changed_by_other(*archive.local_file()) || is_being_applied(archive))
    return unsettled(archive, "another process is changing it");
  // The clock is read first: a write after that gives the file a later time than the clock had.
  const std::int64_t now_ns = wall_clock_ns(Clock::Coarse);
  const auto status = archive.status();
  RETURN_IF_ERROR(status);
  const std::int64_t age_ns = now_ns - status->identity.mtime_ns;
  if (age_ns <= 0 && age_ns > -kLongestTickNs) return unsettled(archive, "was just changed");
  return {};
}

Result<void> check_shown(const Archive& archive) {
  if (!archive.is_as_in_file() || !archive.has_dead_commit()) return {};
  return unsettled(archive, "a commit waits for recovery");
}

template <class Check>
Result<void> check_each(const Model& model, const Check& check) {
  for (const Shard& shard : model.shards()) {
    if (!shard.archive) continue;
    RETURN_IF_ERROR(check(*shard.archive));
  }
  return {};
}

}  // namespace

Result<void> check_settled(const Model& model) {
  return check_each(model, [](const Archive& archive) { return check_settled(archive); });
}

Result<void> check_shown(const Model& model) {
  return check_each(model, [](const Archive& archive) { return check_shown(archive); });
}

}  // namespace stfs
