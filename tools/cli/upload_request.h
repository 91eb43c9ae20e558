// The options of both stfs upload and stfs serve: they choose tensors and devices.
#pragma once

#include <string>
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
  bool is_casting = false;
};

/// Declares SOURCE, --device, --select, --dtype and --cast.
void add_upload_options(CommandLine& line, UploadRequest& request);

/// Returns the request of the options. Otherwise prints the mistake, and returns the exit code.
tl::expected<upload::PlanRequest, int> plan_request(const UploadRequest& request, Streams& streams);

}  // namespace stfs::tools
