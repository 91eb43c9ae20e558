// The host's properties: the name of the processor, and the memory.
#pragma once

#include <string>

#include "tools/device/backend.h"

namespace stfs::upload {

/// Free memory is what the kernel could provide without swapping and the control group's limit still allows.
MemoryInfo cpu_memory();

/// "AMD EPYC 9654, 96 cores".
std::string cpu_description();

}  // namespace stfs::upload
