// The durability and the locks of a commit, and the functions that the commit calls.
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
  /// The time to wait for another process's lock before EBUSY.
  std::chrono::milliseconds lock_patience{10'000};
  /// The time for which the caller has tried already, for the message of EBUSY; nothing: the caller will
  /// retry.
  std::optional<std::chrono::milliseconds> has_waited{0};
  /// Settles the other lane journals of this process (LaneJournal::settle()). Called before the commit waits
  /// for another process, because that process may wait for one of these journals. Also called before a
  /// commit that takes long.
  std::function<void()> settle_others;
  /// Called under the locks if another process has changed the archive's bytes since the last check. The
  /// callee must drop all cached bytes. The archive's new identity is already adopted. An error is a veto:
  /// the commit ends with nothing changed.
  std::function<Result<void>()> on_foreign_change;
  /// Called with no lock held, before the stages and the journal are destroyed; not called if nothing is
  /// staged. After it returns, no thread may read the stages.
  std::function<void()> before_stages_end;
  /// Called with (bytes done, bytes in all) from time to time while the commit seals and applies.
  std::function<void(std::uint64_t, std::uint64_t)> on_progress;
  /// Called with the size of each piece that is copied within the archive before the edit (compaction.h), and
  /// with 0 while the copies are planned. An error ends the commit with nothing changed.
  std::function<Result<void>(std::uint64_t)> on_copy{};
  /// Called from time to time while the commit seals and applies a large patch, at moments when other commits
  /// of this Archive may run. These commits change other blocks, have is_beside set, run one after the other,
  /// and end before this call returns (commit_protocol.h).
  /// @param work  work to do during the call; may be empty.
  /// @return true if another commit has run.
  std::function<bool(const std::function<void()>& work)> lend_turn{};
  /// This commit runs within lend_turn() of another commit. Busy (EBUSY): it would have to wait for that
  /// commit's end.
  bool is_beside = false;
};

}  // namespace stfs
