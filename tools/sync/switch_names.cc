#include "tools/sync/switch_names.h"

#include <sys/stat.h>

#include <cerrno>
#include <optional>

namespace stfs::sync {
namespace {

constexpr std::uint32_t kRoot = 0;

/// Returns nothing if the name is free.
Result<std::optional<FileStatus>> entry_at(Storage& storage, const SyncPlace& place,
                                           const std::string& name) {
  auto there = storage.status_of_name(place.model_file(name));
  if (!there && there.error().errno_value == ENOENT) return std::optional<FileStatus>();
  RETURN_IF_ERROR(there);
  return std::optional(*there);
}

bool is_mounted_on(const Error& error) {
  return error.errno_value == EXDEV;
}

}  // namespace

Result<bool> is_made(Storage& storage, const SyncPlace& place, const std::string& name, std::uint32_t maker) {
  const auto there = entry_at(storage, place, name);
  if (!there && is_mounted_on(there.error())) return false;
  RETURN_IF_ERROR(there);
  if (!*there || !S_ISREG((*there)->mode)) return false;
  const std::uint32_t owner = (*there)->uid;
  if (owner == maker || owner == storage.user() || owner == kRoot) return true;
  const auto directory = storage.status(place.model_folder());
  RETURN_IF_ERROR(directory);
  return owner == directory->uid || (directory->mode & (S_IWGRP | S_IWOTH)) == 0;
}

Result<void> remove_made(Storage& storage, const SyncPlace& place, const std::string& name,
                         std::uint32_t maker) {
  const auto is_ours = is_made(storage, place, name, maker);
  RETURN_IF_ERROR(is_ours);
  return *is_ours ? remove_if_there(storage, place.model_file(name)) : Result<void>();
}

}  // namespace stfs::sync
