// The options that stfs upload and stfs serve have in common: which tensors go to which devices.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "tools/cli/command_line.h"
#include "tools/cli/verb.h"
#include "tools/upload/plan.h"

namespace stfs::tools {

struct UploadRequest {
  std::vector<std::string> sources;
  std::vector<std::string> patterns;
  std::string device;
  std::string dtype;
};

/// Declares SOURCE, --device, --select and --dtype.
void add_upload_options(CommandLine& line, UploadRequest& request);

/// Why no upload can be planned, and whether the reason is a mistake in the command line.
struct UploadRefusal {
  std::string message;
  bool is_wrong_usage = false;
};

tl::expected<upload::PlanRequest, UploadRefusal> plan_request(const UploadRequest& request);

/// @return the exit code.
int report_refusal(Streams& streams, std::string_view verb, const UploadRefusal& refusal);

}  // namespace stfs::tools
