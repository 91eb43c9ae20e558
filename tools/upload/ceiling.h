// What an upload is measured against: how fast bytes get to a device when nothing but copying is done.
#pragma once

#include <cstdint>
#include <optional>

#include "tools/upload/upload.h"

namespace stfs::upload {

/// Bytes per second, of the slowest way there is to one of the devices: to a GPU copies of a ring of
/// page-locked slots, to the host several threads that copy from an arena to fresh memory. Takes some 50 ms
/// and 256 MiB of memory.
/// @return nothing where too little was uploaded to tell (64 MiB), or the memory can't be had.
std::optional<double> measure_ceiling(const Resident& resident, unsigned readers);

}  // namespace stfs::upload
