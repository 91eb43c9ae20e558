// Takes turns, and repeats attempts that another process's lock has refused. After a failure this process
// gives up the journal that stays between small commits: the next process that needs its bytes recovers it.
#include "fs/model/shard_writer.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "fs/base/survive.h"
#include "fs/read/cancellation.h"

namespace stfs {
namespace {

// The pauses between two attempts to get another process's lock.
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{20};

}  // namespace

ShardWriter::ShardWriter(ModelParts& parts, ForeignChanges& foreign, Shards shards,
                         const std::optional<Committers::Patch>& patch)
    : parts_(parts),
      foreign_(foreign),
      shards_(std::move(shards)),
      patch_(patch),
      may_be_beside_(patch && !patch->is_large()) {
  turns_.reserve(shards_.size());
  for (const std::uint32_t shard : shards_) ++committer(shard).waiting;
}

ShardWriter::~ShardWriter() {
  // Without memory nobody has ended the attempt. It may have committed.
  if (is_in_attempt_) end_attempt(fail(ErrorCode::OutOfMemory, ENOMEM, "out of memory"));
  for (const std::uint32_t shard : shards_) --committer(shard).waiting;
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
  // What can't be done beside another commit is tried again without one.
  const bool is_last = has_waited >= parts_.options.commit.lock_patience && !is_beside_;
  may_be_beside_ = may_be_beside_ && !is_beside_;
  last_wait_ = is_last ? std::optional(has_waited) : std::nullopt;
  is_in_attempt_ = true;
  return true;
}

Result<CommitOptions> ShardWriter::options(std::uint32_t shard) {
  if (parts_.reader.is_broken(shard))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "another program has changed the archive's header");
  CommitOptions options = parts_.options.commit;
  options.lock_patience = {};
  options.has_waited = last_wait_;
  options.settle_others = [this] { parts_.committers.settle_journals(shards_); };
  options.is_beside = is_beside_;
  if (patch_ && patch_->is_large()) {
    options.lend_turn = [&lender = committer(*shards_.begin()), blocks = patch_->blocks()](const auto& work) {
      return lender.lend(blocks, work);
    };
  }
  // Changes by others are told apart from our own change.
  options.on_foreign_change = [this, shard]() -> Result<void> {
    // The commit has done the check. A second check could fail, and then the change would be lost.
    const Stale found = foreign_.note_touched(shard);
    if (found.what != Stale::What::Nothing) found_[shard] = found;
    return check_ ? check_() : Result<void>();
  };
  return options;
}

void ShardWriter::end_attempt(Result<void> done) {
  is_in_attempt_ = false;
  for (const std::uint32_t shard : shards_) {
    // It may have failed behind its commit point: then reads show the new bytes, out of the journal.
    if (!done) parts_.states.note_unsettled(shard);
    committer(shard).end_attempt();
  }
  if (done) {
    survive("commit", [&] {
      for (const std::uint32_t shard : shards_) committer(shard).keep_journal();
    });
  }
  const bool is_refused = !done && !last_wait_ && done.error().code == ErrorCode::Busy;
  // Beside a commit of our own more is refused than alone.
  if (is_refused && Cancellation::is_end() && !is_beside_) {
    survive("commit", [&] { done.error().message += ": the mount ends, and waits no longer"; });
  } else if (is_refused) {
    return turns_.clear();
  }
  result_ = std::move(done);
  turns_.clear();
}

}  // namespace stfs
