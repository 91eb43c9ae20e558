// Prints the report of stfs diff --json.
#pragma once

#include <iosfwd>

#include "tools/cli/diff_report.h"

namespace stfs::tools {

void print_diff_json(const DiffReport& report, std::ostream& out);

}  // namespace stfs::tools
