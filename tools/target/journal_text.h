// What a person is told about a journal that recovery has looked at.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/journal/recovery.h"
#include "core/model/model.h"

namespace stfs::tools {

/// Why it is in its state, without its path.
std::string explanation_of(const JournalReport& report);

/// Of one that is void and keeps its name: who may remove it. Empty for others.
std::string left_void_text(const JournalReport& report);

/// Whether somebody still has to do something about it. The owner of one in use does so himself.
bool is_left_undone(const JournalReport& report);

/// What that is, for a journal that `stfs recover` has left.
std::string advice_on(const JournalReport& report);

/// One sentence, with the journal's path in front, for each journal beside a model that was opened for
/// reading which may hold a newer commit that is not shown.
std::vector<std::string> not_shown_beside(const Model& model);

}  // namespace stfs::tools
