#include "fs/write/committers.h"

#include <mutex>
#include <utility>

#include "core/journal/journal_format.h"
#include "fs/base/log.h"

namespace stfs {
namespace {

void warn_of(const Archive& archive, const Result<void>& done) {
  if (!done) log::warning("{}: {}", archive.path().string(), done.error().message);
}

}  // namespace

void Committer::settle_journal() {
  if (is_untidy_) warn_of(archive_, archive_.lane_journal().settle(archive_.durability(durability_)));
}

void Committer::keep_journal() {
  // After a failure each commit makes its own journal.
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

ByteRange Committers::Patch::blocks() const {
  const std::uint64_t begin = round_down_to_block(place.offset);
  return {begin, round_up_to_block(place.end()) - begin};
}

Committers::Committers(const Model& model, Durability durability) {
  for (const Shard& shard : model.shards())
    committers_.push_back(shard.archive ? std::make_unique<Committer>(*shard.archive, durability) : nullptr);
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
    // A commit that is running on that shard may wait for a turn that this call holds, so this call does not
    // wait for the commit. After the commit a retry settles the journal, or tidy() does.
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

}  // namespace stfs
