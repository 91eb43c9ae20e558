// The CPU as a device: asynchronous queues, and arenas in the host's memory.
#pragma once

#include <memory>

#include "tools/device/backend.h"

namespace stfs::upload {

std::shared_ptr<Backend> open_cpu_backend();

}  // namespace stfs::upload
