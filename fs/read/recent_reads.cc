#include "fs/read/recent_reads.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <memory>
#include <new>

namespace stfs {

RecentReads::Time RecentReads::present() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Time(now.tv_sec);
}

RecentReads::Ring* RecentReads::ring() const noexcept {
  if (Ring* const known = ring_.load(std::memory_order_acquire)) return known;
  std::unique_ptr<Ring> made(new (std::nothrow) Ring);
  Ring* present = nullptr;
  if (made && ring_.compare_exchange_strong(present, made.get())) return made.release();
  return present;  // another thread was faster
}

void RecentReads::note(TensorId tensor, std::uint64_t size_bytes, Time now) const noexcept {
  Ring* const to = ring();
  if (to == nullptr) return;
  constexpr std::uint64_t kMostBytes = ~std::uint32_t{0};
  Read& read = to->reads[to->count.fetch_add(1, std::memory_order_relaxed) % kMostReads];
  read.tensor_and_size.store(std::uint64_t{number_of(tensor)} << 32U | std::min(size_bytes, kMostBytes),
                             std::memory_order_relaxed);
  read.at.store(now.count(), std::memory_order_relaxed);
}

std::vector<RecentReads::Share> RecentReads::hottest(std::size_t most, Time now) const {
  const Ring* const from = ring_.load(std::memory_order_acquire);
  if (from == nullptr) return {};
  std::map<std::uint32_t, std::uint64_t> bytes;  // by the number of the tensor
  std::uint64_t all_bytes = 0;
  for (const Read& read : from->reads) {
    const std::int64_t at = read.at.load(std::memory_order_relaxed);
    if (at < 0 || at + kPeriod.count() < now.count()) continue;
    const std::uint64_t what = read.tensor_and_size.load(std::memory_order_relaxed);
    const auto size_bytes = static_cast<std::uint32_t>(what);
    if (size_bytes == 0) continue;
    bytes[static_cast<std::uint32_t>(what >> 32U)] += size_bytes;
    all_bytes += size_bytes;
  }
  std::vector<Share> shares;
  shares.reserve(bytes.size());
  for (const auto& [number, size_bytes] : bytes)
    shares.push_back({TensorId{number}, static_cast<double>(size_bytes) / static_cast<double>(all_bytes)});
  std::ranges::stable_sort(shares, std::ranges::greater(), &Share::of_bytes);
  if (shares.size() > most) shares.erase(shares.begin() + static_cast<std::ptrdiff_t>(most), shares.end());
  return shares;
}

}  // namespace stfs
