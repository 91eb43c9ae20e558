// How a commit is done: how durable, with which locks, and what it tells its caller meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "core/base/durability.h"
#include "core/base/error.h"

namespace stfs {

struct CommitOptions {
  Durability durability = Durability::Power;
  bool uses_locks = true;
  /// How long to wait for another process's lock before EBUSY.
  std::chrono::milliseconds lock_patience{10'000};
  /// How long the caller has tried already, for the message of EBUSY; nothing: the caller will retry.
  std::optional<std::chrono::milliseconds> has_waited{0};
  /// Settles the other lane journals of this process (LaneJournal::settle()). Called before the
  /// commit waits for another process, which may itself wait for one of these journals, and before a commit
  /// that takes long.
  std::function<void()> settle_others;
  /// Called under the locks if another process has changed the archive's bytes since the last check: the
  /// callee must drop all cached bytes. The archive's new identity is adopted by then. An error is a veto:
  /// the commit ends with nothing changed.
  std::function<Result<void>()> on_foreign_change;
  /// Called with no lock held, before the stages and the journal are destroyed; not called if nothing is
  /// staged. Nobody may read the stages after it returns.
  std::function<void()> before_stages_end;
  /// Called with (bytes done, bytes in all) from time to time while it seals and applies.
  std::function<void(std::uint64_t, std::uint64_t)> on_progress;
  /// Called with the bytes of each piece that is copied within the archive before the edit (compaction.h). An
  /// error ends the commit with nothing changed.
  std::function<Result<void>(std::uint64_t)> on_copy{};
  /// Called from time to time while it seals and applies a large patch, at moments when other commits of this
  /// Archive may run: of other blocks, with is_beside, one after the other, each of them whole, before this
  /// call returns (commit_protocol.h).
  /// @param work  to be done meanwhile; may be empty.
  /// @return whether another commit has run.
  std::function<bool(const std::function<void()>& work)> lend_turn{};
  /// Runs within lend_turn() of another commit. Busy (EBUSY): it has to wait for the end of that commit.
  bool is_beside = false;
};

}  // namespace stfs
