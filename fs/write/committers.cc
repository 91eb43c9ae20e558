// Takes turns, and repeats attempts that another process's lock has refused. After a failure this process
// gives up the journal that stays between small commits: the next process that needs its bytes recovers it.
#include "fs/write/committers.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "core/journal/journal_format.h"
#include "fs/base/log.h"

namespace stfs {
namespace {

// The pauses between two attempts to get another process's lock.
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{20};

ByteRange blocks_of(ByteRange place) {
  const std::uint64_t begin = round_down_to_block(place.offset);
  return {begin, round_up_to_block(place.end()) - begin};
}

void warn_of(const Archive& archive, const Result<void>& done) {
  if (!done) log::warning("{}: {}", archive.path().string(), done.error().message);
}

}  // namespace

void Committer::settle_journal() {
  if (is_untidy_) warn_of(archive_, archive_.lane_journal().settle(archive_.durability(durability_)));
}

void Committer::keep_journal() {
  // After a failure each commit makes a journal of its own.
  if (archive_.lane_journal().is_wanted()) warn_of(archive_, archive_.lane_journal().prepare());
}

void Committer::retire_journal() {
  warn_of(archive_, archive_.lane_journal().retire(archive_.durability(durability_)));
}

std::vector<std::unique_ptr<File>> Committer::tidy() {
  settle_journal();
  is_untidy_ = false;
  return archive_.take_discarded();
}

Committers::Committers(const Model& model, const CommitOptions& options) : options_(options) {
  for (const Shard& shard : model.shards()) {
    committers_.push_back(shard.archive ? std::make_unique<Committer>(*shard.archive, options.durability)
                                        : nullptr);
  }
}

Result<void> Committers::in_turn(const Shards& shards,
                                 const std::function<Result<void>(const CommitOptions&)>& attempt,
                                 const std::optional<Patch>& patch) {
  const auto begin = std::chrono::steady_clock::now();
  const ByteRange blocks = patch ? blocks_of(patch->place) : ByteRange{};
  bool may_be_beside = patch && !patch->is_large();
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    {
      std::vector<std::unique_lock<CommitTurn>> turns;
      turns.reserve(shards.size());
      bool is_beside = false;
      for (const std::uint32_t shard : shards) {  // ascending
        CommitTurn& turn = of(shard).turn;
        if (may_be_beside) is_beside = turn.lock_beside(blocks);
        turns.push_back(may_be_beside ? std::unique_lock(turn, std::adopt_lock) : std::unique_lock(turn));
      }
      for (const std::uint32_t shard : shards) of(shard).note_begin();
      const auto has_waited =
          std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
      // What can't be done beside another commit is tried again without one.
      const bool is_last = has_waited >= options_.lock_patience && !is_beside;
      may_be_beside = may_be_beside && !is_beside;
      CommitOptions options = options_;
      options.lock_patience = {};
      options.has_waited = is_last ? std::optional(has_waited) : std::nullopt;
      options.settle_others = [&] { settle_journals(shards); };
      options.is_beside = is_beside;
      if (patch && patch->is_large()) {
        options.lend_turn = [&committer = of(*shards.begin()), blocks](const std::function<void()>& work) {
          const bool has_entered = committer.turn.lend(blocks, work);
          if (has_entered) committer.note_begin();  // it may have been tidy()
          return has_entered;
        };
      }
      auto done = attempt(options);
      for (const std::uint32_t shard : shards) {
        if (done) of(shard).keep_journal();
      }
      if (done || is_last || done.error().code != ErrorCode::Busy) return done;
    }
    std::this_thread::sleep_for(pause);
  }
}

void Committers::settle_journals(const Shards& held) const {
  for (std::uint32_t shard = 0; shard < committers_.size(); ++shard) {
    Committer* const committer = committers_[shard].get();
    if (committer == nullptr || !committer->is_untidy()) continue;
    if (held.contains(shard)) {
      committer->settle_journal();
    } else if (const std::unique_lock free(committer->turn, std::try_to_lock); free) {
      committer->settle_journal();
    }
    // A commit that is running there may wait for a turn of ours, so nobody waits for it. What another
    // process waits for comes free when it ends: a repeated attempt settles the journal then, or else tidy().
  }
}

void Committers::tidy() {
  for (const auto& committer : committers_) {
    if (!committer || !committer->is_untidy()) continue;
    std::vector<std::unique_ptr<File>> discarded;  // declared first, so closed last, without the turn
    committer->turn.lock_beside({});
    const std::unique_lock turn(committer->turn, std::adopt_lock);
    discarded = committer->tidy();
  }
}

void Committers::end() {
  for (const auto& committer : committers_) {
    if (!committer) continue;
    const std::scoped_lock turn(committer->turn);
    committer->retire_journal();
  }
}

TransactionGroup::OptionsOf with_check(const TransactionGroup::OptionsOf& options_of,
                                       const std::function<Result<void>()>& check) {
  return [=](std::uint32_t shard) {
    auto options = options_of(shard);
    if (!options) return options;
    options->on_foreign_change = [=, note = std::move(options->on_foreign_change)]() -> Result<void> {
      if (note) static_cast<void>(note());
      return check();
    };
    return options;
  };
}

}  // namespace stfs
