// A shard has one state for all its tensors, until commits give some of them their own.
#include "fs/read/tensor_states.h"

#include <algorithm>

#include "core/base/mutex.h"
#include "core/base/wall_clock.h"

namespace stfs {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

}  // namespace

struct timespec timespec_of(std::int64_t ns) {
  return {.tv_sec = ns / kSecondNs, .tv_nsec = ns % kSecondNs};
}

std::int64_t ns_of(struct timespec time) {
  return time.tv_sec * kSecondNs + time.tv_nsec;
}

TensorStates::TensorStates(const Snapshots& snapshots, std::uint64_t least_generation)
    : snapshots_(snapshots), of_shards_(snapshots->model->shards().size()) {
  for (std::size_t shard = 0; shard < of_shards_.size(); ++shard) {
    if (!snapshots_->model->shards()[shard].archive) continue;
    const std::int64_t mtime_ns = snapshots_->model->shards()[shard].archive->identity().mtime_ns;
    // Generations begin with the time of the archive's last change, so that they also grow from mount to
    // mount.
    const std::uint64_t first = std::max(least_generation, static_cast<std::uint64_t>(mtime_ns));
    of_shards_[shard] = {.generation = first, .noted = first, .mtime = timespec_of(mtime_ns)};
  }
  first_ = std::max(least_generation, static_cast<std::uint64_t>(wall_clock_ns(Clock::Coarse)));
  for (const State& shard : of_shards_) first_ = std::max(first_, shard.generation);
  newest_ = first_;
}

TensorStates::State TensorStates::of(TensorId tensor) const {
  const MutexLock lock(mutex_);
  const auto changed = of_tensors_.find(tensor);
  return changed == of_tensors_.end() ? of_shards_[snapshots_->model->place(tensor).shard] : changed->second;
}

std::uint64_t TensorStates::newest_generation() const {
  const MutexLock lock(mutex_);
  return newest_;
}

std::uint64_t TensorStates::next_generation(std::int64_t mtime_ns) {
  return newest_ = std::max(newest_ + 1, static_cast<std::uint64_t>(mtime_ns));
}

TensorStates::State& TensorStates::changed(TensorId tensor) {
  return of_tensors_.try_emplace(tensor, of_shards_[snapshots_->model->place(tensor).shard]).first->second;
}

void TensorStates::note_commit(TensorId tensor, std::int64_t mtime_ns,
                               const std::optional<struct timespec>& kept) {
  const MutexLock lock(mutex_);
  State& state = changed(tensor);
  state.generation = state.noted = next_generation(mtime_ns);
  state.mtime = kept.value_or(timespec_of(mtime_ns));
}

void TensorStates::note_foreign_change(std::uint32_t shard, std::int64_t mtime_ns) {
  const MutexLock lock(mutex_);
  std::erase_if(of_tensors_, [&](const auto& changed) {
    return !snapshots_->model->has(changed.first) || snapshots_->model->place(changed.first).shard == shard;
  });
  const std::uint64_t next = next_generation(mtime_ns);
  of_shards_[shard] = {.generation = next, .noted = next, .mtime = timespec_of(mtime_ns)};
}

void TensorStates::note_unsettled(std::uint32_t shard) {
  const MutexLock lock(mutex_);
  of_shards_[shard].generation = ++newest_;
  for (auto& [tensor, state] : of_tensors_) {
    if (snapshots_->model->has(tensor) && snapshots_->model->place(tensor).shard == shard)
      state.generation = newest_;
  }
}

void TensorStates::set_mtime(TensorId tensor, struct timespec mtime) {
  const MutexLock lock(mutex_);
  changed(tensor).mtime = mtime;
}

}  // namespace stfs
