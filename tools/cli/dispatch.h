// Finds and runs the verb that the command line names.
#pragma once

#include <span>

#include "tools/cli/verb.h"

namespace stfs::tools {

/// Runs the verb that the first argument names, or answers --help, `help VERB` and --version.
/// @return the exit code.
int dispatch(std::span<const Verb> verbs, const Arguments& arguments, Streams& streams);

}  // namespace stfs::tools
