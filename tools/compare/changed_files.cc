// Asks the index and each shard.
#include "tools/compare/changed_files.h"

namespace stfs::tools {

std::vector<std::string> changed_files(const Model& model) {
  std::vector<std::string> changed;
  if (model.is_index_changed()) changed.push_back(model.path().string());
  for (const Shard& shard : model.shards()) {
    if (!shard.archive) continue;
    const auto change = shard.archive->check_for_change();
    if (!change || change->is_touched || change->is_replaced) changed.push_back(shard.path.string());
  }
  return changed;
}

}  // namespace stfs::tools
