// Takes turns, and repeats attempts that another process's lock has refused.
#include "fs/write/committers.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

namespace stfs {
namespace {

// The pauses between two attempts to get another process's lock.
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{20};

}  // namespace

Committers::Committers(const Model& model, const CommitOptions& options) : options_(options) {
  for (const Shard& shard : model.shards()) {
    committers_.push_back(shard.archive ? std::make_unique<Committer>(*shard.archive, options.durability)
                                        : nullptr);
  }
}

Result<void> Committers::in_turn(const Shards& shards,
                                 const std::function<Result<void>(const CommitOptions&)>& attempt) {
  const auto begin = std::chrono::steady_clock::now();
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    {
      std::vector<std::unique_lock<std::mutex>> turns;
      turns.reserve(shards.size());
      for (const std::uint32_t shard : shards) turns.emplace_back(of(shard).turn);  // ascending
      for (const std::uint32_t shard : shards) of(shard).note_begin();
      const auto has_waited =
          std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
      const bool is_last = has_waited >= options_.lock_patience;
      CommitOptions options = options_;
      options.lock_patience = {};
      options.has_waited = is_last ? std::optional(has_waited) : std::nullopt;
      options.settle_others = [&] { settle_journals(shards); };
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
    const std::scoped_lock turn(committer->turn);
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
