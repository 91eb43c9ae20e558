// Finds the process that holds a lock.
#pragma once

#include <sys/types.h>

#include <optional>

#include "core/base/byte_range.h"
#include "core/storage/file.h"

namespace stfs {

/// Returns the process that holds an open-file-description lock overlapping the range. F_OFD_GETLK reports no
/// pid for these locks, so this reads /proc/PID/fdinfo of every process that we may inspect. Slow: for
/// messages only.
std::optional<pid_t> find_lock_holder(const FileIdentity& file, ByteRange range);

}  // namespace stfs
