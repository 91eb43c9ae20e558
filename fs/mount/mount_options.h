// The -o options of a mount. One table defines them: the parser, --help, the completions and safetensorsfs(8)
// are made from its rows.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fs/mount/options.h"

namespace stfs {

inline constexpr unsigned kDefaultThreads = 16;

/// Applies one -o option, such as "layout=tree".
/// @return the error in the option, or nothing.
std::optional<std::string> apply_mount_option(std::string_view option, Options& options);

/// Returns the lines of --help for the -o options.
std::string mount_options_help();

/// Returns the -o options for packaging/generate: one JSON object in each line.
std::string mount_option_definitions();

}  // namespace stfs
