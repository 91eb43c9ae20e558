// Whether what lies on the devices is what lies in the archives: both are read once more, and their digests
// compared.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "tools/device/backend.h"
#include "tools/upload/plan.h"
#include "tools/upload/transfers.h"

namespace stfs::upload {

/// @param list      of that plan.
/// @param backends  of each of its devices, and the arenas there.
/// @param readers   threads, at least 1.
/// @return bytes on devices that were compared; EBADMSG with the first tensor that differs; ECANCELED after a
/// stop.
Result<std::uint64_t> verify_arenas(const Plan& plan, const TransferList& list,
                                    const std::vector<std::shared_ptr<Backend>>& backends,
                                    const std::vector<std::shared_ptr<Arena>>& arenas, unsigned readers,
                                    const std::atomic<bool>& is_stopped);

}  // namespace stfs::upload
