// What a person is told about a journal that recovery has looked at.
#pragma once

#include <string>
#include <string_view>

#include "core/model.h"
#include "core/recovery.h"
#include "tools/verb.h"

namespace stfs::tools {

/// Why it is in its state, without its path.
std::string explanation_of(const JournalReport& report);

/// Whether somebody still has to do something about it. The owner of one in use does so himself.
bool is_left_undone(const JournalReport& report);

/// What that is, for a journal that `stfs recover` has left.
std::string advice_on(const JournalReport& report);

/// Says which journals beside a model that was opened for reading may hold a newer commit that is not shown.
/// @return kFailed then, else kDone.
int report_not_shown(Streams& streams, std::string_view verb, const Model& model);

}  // namespace stfs::tools
