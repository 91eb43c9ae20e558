// The host's properties: the name of the processor, and the memory.
#pragma once

#include <string>

#include "tools/device/backend.h"

namespace stfs::device {

/// Free memory is the memory that the kernel could provide without swapping, within the control group's
/// limit.
MemoryInfo cpu_memory();

/// Returns, for example, "AMD EPYC 9654, 96 cores".
std::string cpu_description();

}  // namespace stfs::device
