// The one way in which verbs complain: `stfs VERB: PATH: WHAT: WHY` on the error stream.
#pragma once

#include <string_view>

#include "tools/verb.h"

namespace stfs::tools {

/// Says why the verb failed; safe for a terminal whatever the message quotes.
/// @return kFailed, for the verb to return.
int report_failure(Streams& streams, std::string_view verb, std::string_view message);

/// Says what is wrong with the command line and where its help is.
/// @return kWrongUsage.
int report_wrong_usage(Streams& streams, std::string_view verb, std::string_view message);

}  // namespace stfs::tools
