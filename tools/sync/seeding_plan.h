// Plans the names that the files of a full version get in a model's directory, and the files that they
// replace.
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
  /// The archives' names in the version, and their new names. No file has a new name yet, except an archive
  /// that alone is the model (files.step.to).
  std::map<std::string, std::string> archives;
  /// True: the step replaces or makes an index. False: the version's only archive is the model.
  bool has_index = true;
  /// The other files of the version, which the next full version may replace.
  std::set<std::string> brought{};
  /// The archives of the present model. New files give at most the access of these archives.
  std::vector<std::string> present{};
};

/// Returns true if the directory has any archive.
bool has_model(const std::filesystem::path& directory, Storage& storage);

/// Plans seed_model(), and fails as it does. The plan replaces only the model, the files that libraries look
/// for beside the model (config.json), and files that an earlier version has brought. EEXIST: another file
/// has the name of a file of the version.
Result<SeedingPlan> plan_seeding(const std::filesystem::path& model, const PublishedVersion& version,
                                 const SyncState& state);

}  // namespace stfs::sync
