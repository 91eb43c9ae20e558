// Whose lock is in the way.
#pragma once

#include <sys/types.h>

#include <optional>

#include "core/base/byte_range.h"
#include "core/storage/file.h"

namespace stfs {

/// The process that holds an open-file-description lock overlapping the range. F_OFD_GETLK gives no pid
/// for those, so /proc/PID/fdinfo of every process that we may look into is read: slow, for messages only.
std::optional<pid_t> find_lock_holder(const FileIdentity& file, ByteRange range);

}  // namespace stfs
