// The CPU as a device: queues that work beside the caller, arenas in its memory.
#pragma once

#include <memory>

#include "tools/device/backend.h"

namespace stfs::upload {

std::shared_ptr<Backend> open_cpu_backend();

}  // namespace stfs::upload
