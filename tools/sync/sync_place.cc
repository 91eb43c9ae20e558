#include "tools/sync/sync_place.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <optional>
#include <utility>

#include "core/model/model_directory.h"
#include "tools/sync/file_switch.h"
#include "tools/sync/sync_state.h"

namespace stfs::sync {
namespace {

constexpr std::size_t kMostNameBytes = 180;  // a file name has at most 255

std::string own_name(const std::string& model) {
  if (model.size() <= kMostNameBytes) return fmt::format(".{}.weight_sync", model);
  return fmt::format(".{}~{:016x}.weight_sync", model.substr(0, kMostNameBytes),
                     XXH3_64bits(model.data(), model.size()));
}

/// Whether the model is the directory's only index, or its only archive. Also true for a model that does not
/// exist yet, if nothing else is there.
bool is_of_directory(const std::filesystem::path& directory, const std::string& model, Storage& storage) {
  const auto listed = list_model_directory(directory, storage);
  if (!listed) return true;
  const auto& names = listed->indexes.empty() ? listed->archives : listed->indexes;
  return names.empty() || (names.size() == 1 && names.front() == model);
}

}  // namespace

SyncPlace sync_place_of(const std::filesystem::path& directory, const std::string& model, Storage& storage) {
  SyncPlace own(directory, own_name(model), model);
  if (storage.status(own.folder())) return own;
  SyncPlace shared(directory);
  std::optional<std::string> named = model_in_sync_state(shared, storage);
  // A first pull that was killed has left archives of the model, but no index and no state.
  if (!named) named = model_in_switch(storage, shared);
  // A model that is gone has left its state to the one that is there, which has another name now.
  const bool is_left = !named || !storage.status(directory / *named);
  const bool is_its = (named && *named == model) || (is_left && is_of_directory(directory, model, storage));
  if (!is_its) return own;
  shared.model = model;
  return shared;
}

}  // namespace stfs::sync
