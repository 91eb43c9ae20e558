// Prints a server's report about itself for people.
#pragma once

#include <iosfwd>
#include <string_view>

#include "core/base/error.h"

namespace stfs::tools {

/// @param report  the JSON of serve::query_server(). @return EPROTO if it is something else.
Result<void> print_server_status(std::string_view report, std::ostream& out);

}  // namespace stfs::tools
