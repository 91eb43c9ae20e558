// stfs pull --status: compares a model with the versions that training publishes.
#pragma once

#include <string>

#include "tools/cli/verb.h"

namespace stfs::tools {

/// @return kFailed also if a pull would fail now.
int print_pull_status(const std::string& model, const std::string& published, bool json, Streams& streams);

}  // namespace stfs::tools
