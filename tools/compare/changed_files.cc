// Asks the index and each shard.
#include "tools/compare/changed_files.h"

#include <fmt/format.h>

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

Result<void> check_unchanged(const Model& model, std::string_view during) {
  const std::vector<std::string> changed = changed_files(model);
  if (changed.empty()) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              fmt::format("{}: was changed during {}", changed.front(), during));
}

}  // namespace stfs::tools
