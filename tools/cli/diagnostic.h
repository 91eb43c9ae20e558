// Prints the diagnostics of all verbs in one form: `stfs VERB: PATH: WHAT: WHY` on the error stream.
#pragma once

#include <string_view>

#include "core/model/model.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

/// Prints the reason why the verb failed. The output is safe for a terminal, whatever text the message
/// quotes.
/// @return kFailed, so that the verb can return it.
int report_failure(Streams& streams, std::string_view message);

/// Prints the mistake in the command line and the way to get help.
/// @return kWrongUsage.
int report_wrong_usage(Streams& streams, std::string_view message);

/// Reports each journal beside a model that may hold a newer commit which is not shown, and names a few files
/// that only look like journals.
/// @return kFailed if there is one, else kDone.
int report_not_shown(Streams& streams, const Model& model);

/// Does the same, and also reports disagreements of an index and its shards.
int report_problems(Streams& streams, const Model& model);

/// Does the same, and also hints at other models beside the index (core/model/neighbours.h), for verbs that
/// show a model. The hint changes no exit status.
int report_problems_and_neighbours(Streams& streams, const Model& model);

}  // namespace stfs::tools
