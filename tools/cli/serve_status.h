// Prints for people what a server reports about itself.
#pragma once

#include <iosfwd>
#include <string_view>

#include "core/base/error.h"

namespace stfs::tools {

/// @param report  the JSON of upload::query_server(). @return EPROTO if it is something else.
Result<void> print_server_status(std::string_view report, std::ostream& out);

}  // namespace stfs::tools
