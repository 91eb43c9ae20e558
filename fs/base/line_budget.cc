#include "fs/base/line_budget.h"

#include <algorithm>
#include <utility>

#include "core/base/mutex.h"

namespace stfs {

std::optional<std::uint64_t> LineBudget::take(uid_t user, Time now) {
  const MutexLock lock(mutex_);
  auto account = accounts_.find(user);
  if (account == accounts_.end()) {
    const std::optional<uid_t> key = accounts_.size() < kMostUsers ? std::optional(user) : std::nullopt;
    account = accounts_.try_emplace(key, Account{.at = now}).first;
  }
  Account& its = account->second;
  const double passed_seconds = std::chrono::duration<double>(now - its.at).count();
  its.lines = std::min<double>(kMostAtOnce, its.lines + passed_seconds * kPerSecond);
  its.at = now;
  if (its.lines < 1) {
    ++its.left_out;
    return std::nullopt;
  }
  its.lines -= 1;
  return std::exchange(its.left_out, 0);
}

}  // namespace stfs
