// Finds the tensors whose bytes on the devices differ from the archives.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "core/base/work.h"
#include "tools/device/arena.h"
#include "tools/device/backend.h"
#include "tools/upload/plan.h"

namespace stfs::upload {

struct DifferenceOptions {
  unsigned readers = 0;  // number of threads; 0: default_readers()
  std::function<Result<std::shared_ptr<device::Backend>>(const device::Device&)> open_backend =
      device::Backend::open;
};

/// Compares tensors on devices with the archives. Reads each tensor up to its first difference. Bytes on the
/// CPU are compared directly, and bytes on a GPU by digests of their pieces (digest.h). Changes nothing.
/// @param plan        the tensors to compare. PlannedTensor::place is the present place.
/// @param arenas      by position in plan.tensors: the arena of that place.
/// @param work        one pass, of the source bytes; counts each tensor once it has been compared.
/// @return by position in plan.tensors: true if the tensor differs. ECANCELED if the work is stopped; the
///   errors of reading and of the devices.
Result<std::vector<bool>> find_different(const Plan& plan,
                                         const std::vector<std::shared_ptr<device::Arena>>& arenas,
                                         const DifferenceOptions& options, Work& work);

}  // namespace stfs::upload
