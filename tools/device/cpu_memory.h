// What the host has: its processor's name, and the memory that can still be had.
#pragma once

#include <string>

#include "tools/device/backend.h"

namespace stfs::upload {

/// Free is what the kernel could give without swapping, and a control group's limit still allows.
MemoryInfo cpu_memory();

/// "AMD EPYC 9654, 96 cores".
std::string cpu_description();

}  // namespace stfs::upload
