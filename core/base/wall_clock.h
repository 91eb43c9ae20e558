// Reads the clock that the kernel stamps files with.
#pragma once

#include <cstdint>

namespace stfs {

/// Returns CLOCK_REALTIME in ns. Fine: the clock's full resolution. Coarse: the resolution of file times.
enum class Clock : std::uint8_t { Fine, Coarse };
std::int64_t wall_clock_ns(Clock clock);

}  // namespace stfs
