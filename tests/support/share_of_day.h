// Chooses a seventh of the rows of a long test by the day. A week, or a run with --long, runs all rows.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace stfs::test {

inline constexpr std::uint64_t kShares = 7;

/// The day in days since 1970. tests/run prints it; STFS_DAY=N repeats another day's share.
inline std::uint64_t day() {
  constexpr std::time_t kSecondsOfDay = 86'400;
  const char* day = std::getenv("STFS_DAY");
  return day == nullptr ? static_cast<std::uint64_t>(std::time(nullptr) / kSecondsOfDay)
                        : std::strtoull(day, nullptr, 10);
}

/// True if today's share has the row at this place. With STFS_LONG it has every row.
inline bool is_todays(std::uint64_t at) {
  return std::getenv("STFS_LONG") != nullptr || at % kShares == day() % kShares;
}

}  // namespace stfs::test
