// Takes turns, and retries attempts that another process's lock has refused. After a failure this process
// gives up the journal that it keeps between small commits: the next process that needs the bytes of the
// journal recovers it.
#include "fs/model/shard_writer.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/base/cancellation.h"
#include "fs/base/survive.h"
#include "fs/model/mounted_model.h"

namespace stfs {
namespace {

// The pauses between two attempts to get another process's lock.
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{20};

}  // namespace

ShardWriter::ShardWriter(MountedModel& mounted, Shards shards, const std::optional<Committers::Patch>& patch)
    : mounted_(mounted),
      shards_(std::move(shards)),
      patch_(patch),
      may_be_beside_(patch && !patch->is_large()) {
  turns_.reserve(shards_.size());
  for (const std::uint32_t shard : shards_) ++committer(shard).waiting;
}

ShardWriter::~ShardWriter() {
  // If memory ran out, no call has ended the attempt. The commit may have succeeded.
  if (is_in_attempt_) end_attempt(fail(ErrorCode::OutOfMemory, ENOMEM, "out of memory"));
  for (const std::uint32_t shard : shards_) --committer(shard).waiting;
}

Committer& ShardWriter::committer(std::uint32_t shard) const {
  return mounted_.committers_.of(shard);
}

bool ShardWriter::take_turns() {
  if (result_) return false;
  if (pause_ > std::chrono::milliseconds{0}) std::this_thread::sleep_for(pause_);
  pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
  const ByteRange blocks = patch_ ? patch_->blocks() : ByteRange{};
  is_beside_ = false;
  for (const std::uint32_t shard : shards_) {  // ascending
    CommitTurn& turn = committer(shard).turn;
    if (may_be_beside_) is_beside_ = turn.lock_beside(blocks);
    turns_.push_back(may_be_beside_ ? std::unique_lock(turn, std::adopt_lock) : std::unique_lock(turn));
  }
  for (const std::uint32_t shard : shards_) committer(shard).begin_attempt();
  const auto has_waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_);
  // If another commit lends its turn, a refused attempt is retried without the lent turn.
  const bool is_last = has_waited >= mounted_.options_.commit.lock_patience && !is_beside_;
  may_be_beside_ = may_be_beside_ && !is_beside_;
  last_wait_ = is_last ? std::optional(has_waited) : std::nullopt;
  is_in_attempt_ = true;
  return true;
}

Result<CommitOptions> ShardWriter::options(std::uint32_t shard) {
  if (mounted_.reader_.is_broken(shard))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "another program has changed the archive's header");
  CommitOptions options = mounted_.options_.commit;
  options.lock_patience = {};
  options.has_waited = last_wait_;
  options.settle_others = [this] { mounted_.committers_.settle_journals(shards_); };
  options.is_beside = is_beside_;
  if (patch_ && patch_->is_large()) {
    options.lend_turn = [&lender = committer(*shards_.begin()), blocks = patch_->blocks()](const auto& work) {
      return lender.lend(blocks, work);
    };
  }
  // This reports changes by other programs apart from the change of this commit.
  options.on_foreign_change = [this, shard]() -> Result<void> {
    // The commit has done the check. A second check could fail, and then the change would be lost.
    const Stale found = mounted_.foreign_.note_touched(shard);
    if (found.what != Stale::What::Nothing) found_[shard] = found;
    return check_ ? check_() : Result<void>();
  };
  return options;
}

void ShardWriter::end_attempt(Result<void> done) {
  is_in_attempt_ = false;
  for (const std::uint32_t shard : shards_) {
    // A failed commit may be past its commit point. Then reads get the new bytes from the journal.
    if (!done) mounted_.states_.note_unsettled(shard);
    committer(shard).end_attempt();
  }
  if (done) {
    survive("commit", [&] {
      for (const std::uint32_t shard : shards_) committer(shard).keep_journal();
    });
  }
  const bool is_refused = !done && !last_wait_ && done.error().code == ErrorCode::Busy;
  // A commit beside another commit of this mount is refused in more cases than a commit alone.
  if (is_refused && Cancellation::is_end() && !is_beside_) {
    survive("commit", [&] { done.error().message += ": the mount ends, and waits no longer"; });
  } else if (is_refused) {
    return turns_.clear();
  }
  result_ = std::move(done);
  turns_.clear();
}

}  // namespace stfs
