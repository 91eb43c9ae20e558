#include "core/base/wall_clock.h"

#include <time.h>

namespace stfs {

std::int64_t wall_clock_ns(Clock clock) {
  struct timespec now {};
  clock_gettime(clock == Clock::Fine ? CLOCK_REALTIME : CLOCK_REALTIME_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace stfs
