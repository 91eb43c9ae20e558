// Verifies that the bytes on the devices equal the bytes in the archives. Reads both once more and compares
// their digests.
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

/// @param list      the transfers of that plan.
/// @param backends  of each of the plan's devices; `arenas` are on these devices.
/// @param readers   number of threads, at least 1.
/// @return the bytes on devices that were compared; EBADMSG with the first tensor that differs;
///         ECANCELED after a stop.
Result<std::uint64_t> verify_arenas(const Plan& plan, const TransferList& list,
                                    const std::vector<std::shared_ptr<device::Backend>>& backends,
                                    const std::vector<std::shared_ptr<device::Arena>>& arenas,
                                    unsigned readers, const std::atomic<bool>& is_stopped);

}  // namespace stfs::upload
