// The time of day, as files are stamped with it.
#pragma once

#include <cstdint>

namespace stfs {

/// Returns CLOCK_REALTIME in ns. Fine: the clock's full resolution. Coarse: the resolution of file times.
enum class Clock : std::uint8_t { Fine, Coarse };
std::int64_t wall_clock_ns(Clock clock);

}  // namespace stfs
