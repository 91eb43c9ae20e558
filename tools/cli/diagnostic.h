// The one way in which verbs complain: `stfs VERB: PATH: WHAT: WHY` on the error stream.
#pragma once

#include <string_view>

#include "core/model/model.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

/// Says why the verb failed; safe for a terminal whatever the message quotes.
/// @return kFailed, for the verb to return.
int report_failure(Streams& streams, std::string_view verb, std::string_view message);

/// Says what is wrong with the command line and where its help is.
/// @return kWrongUsage.
int report_wrong_usage(Streams& streams, std::string_view verb, std::string_view message);

/// Names the journals beside a model that may hold a newer commit than is shown.
/// @return kFailed where there is one, else kDone.
int report_not_shown(Streams& streams, std::string_view verb, const Model& model);

/// The same, and what an index and its shards disagree on.
int report_problems(Streams& streams, std::string_view verb, const Model& model);

}  // namespace stfs::tools
