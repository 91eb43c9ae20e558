#include "tools/sync/switch_names.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

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

Result<bool> is_free_name(Storage& storage, const SyncPlace& place, const std::string& name) {
  const auto there = entry_at(storage, place, name);
  if (!there && is_mounted_on(there.error())) return false;
  RETURN_IF_ERROR(there);
  return !there->has_value();
}

Result<std::optional<std::string>> find_obstacle(Storage& storage, const SyncPlace& place,
                                                 const std::string& name) {
  const auto there = entry_at(storage, place, name);
  if (!there && is_mounted_on(there.error())) return std::optional<std::string>("a mount");
  RETURN_IF_ERROR(there);
  if (!*there) return std::optional<std::string>();
  const std::uint32_t owner = (*there)->uid;
  const bool is_directory = S_ISDIR((*there)->mode);
  if (!is_directory) {
    if (storage.user() == kRoot || owner == storage.user()) return std::optional<std::string>();
    const auto directory = storage.status(place.model_folder());
    RETURN_IF_ERROR(directory);
    const bool is_kept = (directory->mode & S_ISVTX) != 0 && directory->uid != storage.user();
    if (!is_kept) return std::optional<std::string>();
  }
  return std::optional(fmt::format("a {} of user {}", is_directory ? "directory" : "file", owner));
}

Result<void> check_final_name(Storage& storage, const SyncPlace& place, const std::string& name) {
  const auto obstacle = find_obstacle(storage, place, name);
  RETURN_IF_ERROR(obstacle);
  if (!*obstacle) return {};
  return fail(ErrorCode::InvalidArgument, EEXIST,
              fmt::format("{}: {} has the name of a file of the new version: rename or remove it, then pull "
                          "again: the model is unchanged",
                          (place.directory / name).native(), **obstacle));
}

}  // namespace stfs::sync
