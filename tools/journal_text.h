// What a person is told about a journal that recovery has looked at.
#pragma once

#include <string>

#include "core/recovery.h"

namespace stfs::tools {

/// Why it is in its state, without its path.
std::string explanation_of(const JournalReport& report);

/// Whether somebody still has to do something about it. The owner of one in use does so himself.
bool is_left_undone(const JournalReport& report);

/// What that is, for a journal that `stfs recover` has left.
std::string advice_on(const JournalReport& report);

}  // namespace stfs::tools
