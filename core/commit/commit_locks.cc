// Repeats its steps until the locks are held and no journal is in the way.
#include "core/commit/commit_locks.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "core/journal/recovery.h"

namespace stfs {
namespace {

/// @param take  takes the locks, and waits at most for the given time.
template <class Take>
Result<ArchiveLocks> lock_and_settle(Archive& archive, const std::vector<ByteRange>& ranges,
                                     const CommitOptions& options, const Take& take) {
  constexpr std::chrono::milliseconds kPause{2};
  const auto deadline = std::chrono::steady_clock::now() + options.lock_patience;
  LaneJournal& lane_journal = archive.lane_journal();
  bool has_recovered = false;
  std::optional<Error> why_not_recovered;
  ArchiveLocks locks;
  bool is_locked = false;
  bool has_seen_others = false;
  // The process that blocks us may itself wait until we settle, in this archive or in another.
  bool owes_nothing = false;
  const auto settle_all = [&]() -> Result<void> {
    if (std::exchange(owes_nothing, true)) return {};
    if (options.settle_others) options.settle_others();
    return lane_journal.settle(archive.durability(options.durability));
  };
  for (;;) {
    if (options.uses_locks && !is_locked) {
      const auto patience = owes_nothing ? options.lock_patience : std::chrono::milliseconds(0);
      auto taken = take(patience);
      if (!taken && taken.error().code == ErrorCode::Busy && !owes_nothing) {
        RETURN_IF_ERROR(settle_all());
        continue;
      }
      RETURN_IF_ERROR(taken);
      locks = std::move(*taken);
      is_locked = true;
    }
    if (!has_seen_others) {
      RETURN_IF_ERROR(archive.file().refresh(ranges));
      has_seen_others = true;
    }
    auto obstacle = find_obstacle(archive.storage(), archive.real_path(), archive.file(), ranges,
                                  lane_journal.path(), archive.left_void());
    RETURN_IF_ERROR(obstacle);
    if (*obstacle == Obstacle::None) return locks;
    if (*obstacle == Obstacle::Unsettled) {
      RETURN_IF_ERROR(settle_all());
      if (std::chrono::steady_clock::now() >= deadline) {
        return fail(ErrorCode::Busy, EBUSY,
                    archive.path().string() +
                        ": another process has committed to these bytes and has not "
                        "settled its journal");
      }
      std::this_thread::sleep_for(kPause);
      continue;
    }
    // Recover a dead owner's journal even if the deadline has passed. If that fails, wait for it until the
    // deadline.
    // Recovery by this process would release the other commit's locks. The recovery can wait for that
    // commit's end.
    if (options.is_beside) {
      return fail(ErrorCode::Busy, EBUSY, archive.path().string() + ": a journal waits for recovery");
    }
    const bool has_tried = std::exchange(has_recovered, *obstacle == Obstacle::DeadOwner);
    if ((*obstacle == Obstacle::Recovery || has_tried) && std::chrono::steady_clock::now() >= deadline) {
      if (why_not_recovered) return tl::unexpected(std::move(*why_not_recovered));
      return fail(ErrorCode::Busy, EBUSY,
                  archive.path().string() + ": another process is recovering its journals");
    }
    RETURN_IF_ERROR(settle_all());
    // Recovery locks the ranges that the journal names. While we hold our locks, recovery would wait for us,
    // or would release our locks with its locks.
    locks.release();
    is_locked = has_seen_others = false;
    if (*obstacle == Obstacle::DeadOwner) {
      auto recovered = recover(archive.storage(), archive.real_path(), archive.file());
      if (!recovered && recovered.error().code != ErrorCode::Busy) return pass_on(std::move(recovered));
      if (recovered) archive.note_left_void(*recovered);
      if (!recovered) why_not_recovered = std::move(recovered).error();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

}  // namespace

Result<ArchiveLocks> lock_for_commit(Archive& archive, const std::vector<ByteRange>& ranges,
                                     const CommitOptions& options) {
  return lock_and_settle(archive, ranges, options, [&](std::chrono::milliseconds patience) {
    const auto take = options.is_beside ? &ArchiveLocks::for_blocks : &ArchiveLocks::for_patch;
    return take(archive.file(), archive.path(), ranges, patience, options.has_waited);
  });
}

Result<ArchiveLocks> lock_for_edit(Archive& archive, const CommitOptions& options) {
  const std::vector<ByteRange> all = {{0, archive.stamp().size_bytes}};
  return lock_and_settle(archive, all, options, [&](std::chrono::milliseconds patience) {
    return ArchiveLocks::for_edit(archive.file(), archive.path(), patience, options.has_waited);
  });
}

Result<ReadersKeptOut> ReadersKeptOut::of(Archive& archive) {
  if (!archive.keep_readers_out()) {
    return fail(ErrorCode::Busy, EBUSY,
                archive.path().string() +
                    ": another process, or a mount, has opened the archive meanwhile: try again");
  }
  ReadersKeptOut kept_out;
  kept_out.archive_ = &archive;
  return kept_out;
}

Result<void> check_archive(Archive& archive, const CommitOptions& options) {
  auto change = archive.check_for_change();
  RETURN_IF_ERROR(change);
  const std::string path = archive.path().string();
  if (change->is_replaced) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                path + ": the archive was replaced or deleted while it was open");
  }
  // Journals are beside one name of the archive: a writer that uses another name would not find them.
  if (change->links > 1) {
    return fail(
        ErrorCode::InvalidArgument, EMLINK,
        fmt::format(
            "{}: the archive has {} hard links and is not written: a writer that uses another link would not "
            "find its journals; copy the archive to a file of its own (cp --reflink=auto)",
            path, change->links));
  }
  if (change->is_broken) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                path + ": another program has changed the archive's header");
  }
  if (change->size_bytes != archive.stamp().size_bytes) {
    return fail(ErrorCode::ArchiveCut, EIO,
                fmt::format("{}: its size has changed from {} bytes to {}", path, archive.stamp().size_bytes,
                            change->size_bytes));
  }
  if (!change->is_touched) return {};
  RETURN_IF_ERROR(archive.adopt_identity());
  return options.on_foreign_change ? options.on_foreign_change() : Result<void>{};
}

}  // namespace stfs
