// Prints the plan and the result of stfs upload.
#pragma once

#include <ostream>
#include <vector>

#include "core/base/error.h"
#include "tools/device/backend.h"
#include "tools/upload/plan.h"
#include "tools/upload/upload.h"

namespace stfs::tools {

/// The present memory of each of a plan's devices, or why the device cannot be used.
using PlanMemory = std::vector<Result<upload::MemoryInfo>>;

struct UploadOutcome {
  const upload::Plan& plan;
  const PlanMemory* memory = nullptr;            // set if the plan is only shown
  const upload::UploadReport* report = nullptr;  // set if the plan was carried out
};

void print_upload_json(const UploadOutcome& outcome, std::ostream& out);
void print_upload_text(const UploadOutcome& outcome, std::ostream& out);

}  // namespace stfs::tools
