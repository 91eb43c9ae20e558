#include "core/model/transaction_group.h"

#include <algorithm>
#include <utility>

#include "core/commit/commit_protocol.h"

namespace stfs {
namespace {

Result<void> commit_together_unguarded(std::map<std::uint32_t, Transaction>& transactions,
                                       const TransactionGroup::OptionsOf& options_of,
                                       const TransactionGroup::LockOf& lock_of) {
  struct Part {
    CommitOptions options;
    Transaction::LockOf lock_of;
  };
  std::map<std::uint32_t, Part> parts;
  CommitProtocol protocol;
  for (auto& [shard, transaction] : transactions) {
    if (!transaction.is_dirty()) continue;
    auto options = options_of(shard);
    RETURN_IF_ERROR(options);
    const auto lock_in_shard = [&lock_of, at = shard](TensorId tensor) -> ReaderWriterLock& {
      return lock_of({at, tensor});
    };
    const Part& part = parts.emplace(shard, Part{std::move(*options), lock_in_shard}).first->second;
    protocol.add(transaction, part.options, part.lock_of);
  }
  return protocol.commit();
}

}  // namespace

TransactionGroup::TransactionGroup(const Model& model, TakeDescriptor take_descriptor)
    : take_descriptor_(std::move(take_descriptor)) {
  for (const Shard& shard : model.shards()) archives_.push_back(shard.archive.get());
  for (std::uint32_t shard = 0; model.is_of_base(shard); ++shard)
    base_.push_back(model.shards()[shard].version);
}

tl::unexpected<Error> TransactionGroup::refuse_base() const {
  return fail(ErrorCode::ReadOnly, EROFS,
              archives_.front()->path().string() + ": is the base of a delta: its bytes are not changed");
}

Result<Staging*> TransactionGroup::stage(TensorPlace place) {
  return guard_memory([&]() -> Result<Staging*> {
    const bool is_copy = place.shard < base_.size();
    RETURN_IF_ERROR(take_share(is_copy ? 0 : place.shard));
    if (is_copy) return stage_copy(place);
    return transactions_.try_emplace(place.shard, *archives_[place.shard]).first->second.stage(place.tensor);
  });
}

Result<void> TransactionGroup::take_share(std::uint32_t shard) {
  if (take_descriptor_ == nullptr || shares_.contains(shard)) return {};
  auto share = take_descriptor_();
  RETURN_IF_ERROR(share);
  shares_.emplace(shard, std::move(*share));
  return {};
}

Result<Staging*> TransactionGroup::stage_copy(TensorPlace place) {
  if (!journal_) {
    Archive& delta = *archives_[base_.size()];
    RETURN_IF_ERROR(delta.open_for_writing());
    auto journal = Journal::create(delta.storage(), delta.real_path(), delta.file());
    RETURN_IF_ERROR(journal);
    journal_ = std::move(*journal);
  }
  const auto found = copies_.find(place);
  if (found != copies_.end()) return found->second.get();
  auto stage = std::make_unique<Staging>(*journal_, base_[place.shard]->file_range(place.tensor));
  return copies_.emplace(place, std::move(stage)).first->second.get();
}

void TransactionGroup::drop(TensorPlace place) {
  copies_.erase(place);
  const auto found = transactions_.find(place.shard);
  if (found != transactions_.end()) found->second.drop(place.tensor);
}

Result<void> TransactionGroup::begin_patches(const std::vector<TensorPlace>& places,
                                             const OptionsOf& options_of) {
  return guard_memory([&] { return begin_patches_unguarded(places, options_of); });
}

Result<void> TransactionGroup::begin_patches_unguarded(const std::vector<TensorPlace>& places,
                                                       const OptionsOf& options_of) {
  std::map<std::uint32_t, std::vector<TensorId>> tensors;
  for (const TensorPlace place : places) {
    if (place.shard < base_.size()) return refuse_base();
    tensors[place.shard].push_back(place.tensor);
  }
  std::vector<std::uint32_t> shards;
  for (const auto& entry : tensors) shards.push_back(entry.first);
  std::ranges::sort(shards, {}, [&](std::uint32_t shard) { return archives_[shard]->real_path(); });
  for (const std::uint32_t shard : shards) {
    auto options = options_of(shard);
    RETURN_IF_ERROR(options);
    Transaction& transaction = transactions_.try_emplace(shard, *archives_[shard]).first->second;
    RETURN_IF_ERROR(transaction.begin_patches(tensors[shard], *options));
  }
  return {};
}

bool TransactionGroup::has_patches() const {
  return std::ranges::any_of(transactions_, [](const auto& entry) { return entry.second.has_patches(); });
}

Result<void> TransactionGroup::replace_sync_state(std::string_view text) {
  Transaction* last = nullptr;
  const Archive* archive = nullptr;
  for (auto& [shard, transaction] : transactions_) {
    const bool is_later = archive == nullptr || archive->real_path() < archives_[shard]->real_path();
    if (!transaction.has_patches() || !is_later) continue;
    last = &transaction;
    archive = archives_[shard];
  }
  return last == nullptr ? Result<void>{} : last->replace_sync_state(text);
}

bool TransactionGroup::is_empty() const {
  return copies_.empty() &&
         std::ranges::all_of(transactions_, [](const auto& entry) { return entry.second.is_empty(); });
}

Result<void> TransactionGroup::commit(const OptionsOf& options_of, const LockOf& lock_of) {
  return guard_memory([&] { return commit_unguarded(options_of, lock_of); });
}

Result<void> TransactionGroup::commit_unguarded(const OptionsOf& options_of, const LockOf& lock_of) {
  if (has_copies()) return refuse_base();
  std::vector<const Transaction*> changed;
  for (const auto& [shard, transaction] : transactions_) {
    if (transaction.is_dirty()) changed.push_back(&transaction);
  }
  auto committed = commit_together(transactions_, options_of, lock_of);
  // Once any part has committed, drop the other shards' clean stages also.
  if (committed || std::ranges::any_of(changed, &Transaction::is_empty)) transactions_.clear();
  return committed;
}

Result<void> commit_together(std::map<std::uint32_t, Transaction>& transactions,
                             const TransactionGroup::OptionsOf& options_of,
                             const TransactionGroup::LockOf& lock_of) {
  return guard_memory([&] { return commit_together_unguarded(transactions, options_of, lock_of); });
}

}  // namespace stfs
