// What stfs upload says: of a plan, and of what was done.
#pragma once

#include <ostream>
#include <vector>

#include "core/base/error.h"
#include "tools/device/backend.h"
#include "tools/upload/plan.h"
#include "tools/upload/upload.h"

namespace stfs::tools {

/// The memory of each of a plan's devices now, or why the device can't be used.
using PlanMemory = std::vector<Result<upload::MemoryInfo>>;

struct UploadOutcome {
  const upload::Plan& plan;
  const PlanMemory* memory = nullptr;            // of a plan that is only shown
  const upload::UploadReport* report = nullptr;  // of one that was carried out
};

void print_upload_json(const UploadOutcome& outcome, std::ostream& out);
void print_upload_text(const UploadOutcome& outcome, std::ostream& out);

}  // namespace stfs::tools
