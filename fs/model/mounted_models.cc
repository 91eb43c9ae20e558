#include "fs/model/mounted_models.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/mutex.h"

namespace stfs {

Result<MountedModels::Number> MountedModels::add(std::unique_ptr<MountedModel> mounted,
                                                 UserCounts::Share share) {
  const MutexLock lock(mutex_);
  const auto free = std::ranges::find_if(by_number_, [](const auto& edition) { return edition == nullptr; });
  const auto at = static_cast<Number>(free - by_number_.begin());
  if (at >= most_) {
    return fail(ErrorCode::System, ENFILE, fmt::format("{} older versions are still open", most_));
  }
  if (free == by_number_.end()) by_number_.emplace_back();
  by_number_[at] = std::make_unique<Edition>(std::move(mounted), first_ + at, std::move(share));
  return first_ + at;
}

MountedModels::Pin MountedModels::pin(Number number) const {
  const SharedLock lock(mutex_);
  if (number < first_ || number - first_ >= by_number_.size()) return {};
  Edition* const edition = by_number_[number - first_].get();
  if (edition == nullptr) return {};
  edition->holders.fetch_add(1, std::memory_order_relaxed);
  return {this, edition};
}

void MountedModels::let_go(Number number, std::uint64_t holders) const {
  // The pin keeps the edition until its holders are subtracted.
  if (const Pin edition = pin(number)) let_go(*edition.edition_, holders);
}

void MountedModels::let_go(Edition& edition, std::uint64_t holders) const {
  const Number at = edition.number - first_;
  if (edition.holders.fetch_sub(holders, std::memory_order_acq_rel) != holders) return;
  {
    const MutexLock lock(mutex_);
    // Since the count reached 0, another thread may have pinned the edition, and may have let go of it again.
    if (by_number_[at] == nullptr || by_number_[at]->holders != 0) return;
    ended_.push_back(std::move(by_number_[at]));
  }
  note_end_();
}

std::vector<std::unique_ptr<MountedModel>> MountedModels::take_ended() {
  std::vector<std::unique_ptr<Edition>> ended;
  {
    const MutexLock lock(mutex_);
    ended = std::exchange(ended_, {});
  }
  std::vector<std::unique_ptr<MountedModel>> models;
  for (const auto& edition : ended) {
    models.push_back(std::move(edition->mounted));
  }
  return models;
}

std::vector<MountedModels::Pin> MountedModels::all() const {
  std::vector<Pin> pins;
  const SharedLock lock(mutex_);
  for (const auto& edition : by_number_) {
    if (edition == nullptr || edition->holders == 0) continue;
    edition->holders.fetch_add(1, std::memory_order_relaxed);
    pins.push_back(Pin(this, edition.get()));
  }
  return pins;
}

}  // namespace stfs
