// One archive at a time.
#include "fs/transaction_group.h"

#include <fmt/format.h>

#include <algorithm>

namespace stfs {

Result<Staging*> TransactionGroup::stage(TensorPlace place) {
  return transactions_.try_emplace(place.shard, model_.archive(place.shard))
      .first->second.stage(place.tensor);
}

void TransactionGroup::drop(TensorPlace place) {
  const auto found = transactions_.find(place.shard);
  if (found != transactions_.end()) found->second.drop(place.tensor);
}

bool TransactionGroup::is_empty() const {
  return std::ranges::all_of(transactions_, [](const auto& entry) { return entry.second.is_empty(); });
}

Result<void> TransactionGroup::commit(const OptionsOf& options_of, const LockOf& lock_of) {
  const auto is_dirty = [](const auto& entry) { return entry.second.is_dirty(); };
  const auto dirty = std::ranges::find_if(transactions_, is_dirty);
  if (dirty != transactions_.end()) {
    const auto other = std::find_if(std::next(dirty), transactions_.end(), is_dirty);
    if (other != transactions_.end()) {
      return fail(
          ErrorCode::InvalidArgument, EXDEV,
          fmt::format("tensors of several shards are staged ({} and {}): commit those of each shard in a "
                      "transaction of its own",
                      model_.archive(dirty->first).path().string(),
                      model_.archive(other->first).path().string()));
    }
    const std::uint32_t shard = dirty->first;
    const auto options = options_of(shard);
    if (!options) return tl::unexpected(options.error());
    const auto lock_in_shard = [&](std::uint32_t tensor) -> ReaderWriterLock& {
      return lock_of({shard, tensor});
    };
    if (auto committed = dirty->second.commit(*options, lock_in_shard); !committed) {
      // Behind the commit point: what only looks staged elsewhere ends with it.
      if (dirty->second.is_empty()) transactions_.clear();
      return committed;
    }
  }
  transactions_.clear();
  return {};
}

}  // namespace stfs
