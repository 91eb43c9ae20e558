// Explains to the user the state of a journal that recovery has examined.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/journal/recovery.h"
#include "core/model/model.h"

namespace stfs::tools {

/// Returns why the journal is in its state. The text does not contain the journal's path.
std::string explanation_of(const JournalReport& report);

/// For a void journal that keeps its name: names the users who may remove it. Empty for all others.
std::string left_void_text(const JournalReport& report);

/// Returns true if the user still has to act on the journal. The owner of a journal in use acts without help.
bool is_left_undone(const JournalReport& report);

/// Returns the user's next step for a journal that `stfs recover` has left.
std::string advice_on(const JournalReport& report);

/// Returns one sentence, with the path in front, for each name beside the model that only looks like a
/// journal (JournalReport::is_ignored). After the first few names it only gives the number of the others.
std::vector<std::string> ignored_beside(const Model& model);

/// Returns one sentence, with the journal's path in front, for each journal that may hold a newer commit
/// which is not shown. The model must be opened for reading; the journals are beside it.
std::vector<std::string> not_shown_beside(const Model& model);

}  // namespace stfs::tools
