// Which names the files of a full version get in a model's directory, and which files they replace.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tools/sync/file_switch.h"
#include "tools/sync/published_version.h"
#include "tools/sync/sync_state.h"

namespace stfs::sync {

struct SeedingPlan {
  FileSwitch files;
  /// The archives' names in the version, and those that they get: names that nobody has yet, but for an
  /// archive that is the model alone (files.step.to).
  std::map<std::string, std::string> archives;
  /// Whether the step replaces an index, or makes one. Else the version's only archive is the model.
  bool has_index = true;
  /// The other files of the version, which the next full version may replace.
  std::set<std::string> brought{};
  /// The archives of the model that is there. New files are no more readable than these.
  std::vector<std::string> present{};
};

/// Whether the directory holds any archive.
bool has_model(const std::filesystem::path& directory, Storage& storage);

/// Plans what seed_model() does, and fails as it does. Only the model, with the files that libraries look for
/// beside it (config.json), and what an earlier version has brought are replaced. EEXIST: another file has
/// the name of one of the version.
Result<SeedingPlan> plan_seeding(const std::filesystem::path& model, const PublishedVersion& version,
                                 const SyncState& state);

}  // namespace stfs::sync
