// The -o options of a mount. One table defines them: the parser, --help, the completions and safetensorsfs(8)
// come from its rows.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fs/mount/options.h"

namespace stfs {

inline constexpr unsigned kDefaultThreads = 16;

/// Applies one -o option, such as "layout=tree".
/// @return what is wrong with the option, or nothing.
std::optional<std::string> apply_mount_option(std::string_view option, Options& options);

/// Returns the lines of --help for the -o options.
std::string mount_options_help();

/// Returns the -o options for packaging/generate: an object of JSON in each line.
std::string mount_option_definitions();

}  // namespace stfs
