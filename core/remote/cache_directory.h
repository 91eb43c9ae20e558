// The directories for bytes that can be fetched again.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

/// Returns $XDG_CACHE_HOME or ~/.cache, and makes it. Nothing if neither is an absolute path, or if it can't
/// be made.
std::optional<std::filesystem::path> cache_directory();

/// Opens a directory below safetensorsfs/ in cache_directory(), and makes it. Only this user may enter it.
/// @param path  relative.
/// @return EPERM: another user may have made one of the directories, or may write it. ENOENT: there is no
///   cache_directory().
Result<UniqueFd> open_own_cache(const std::filesystem::path& path);

/// Puts a whole file into a directory of the cache, in place of another one.
/// @return ENOSPC: less than a twentieth of the disk is free.
Result<void> put_in_cache(int directory, const std::string& name, std::span<const std::byte> bytes,
                          mode_t mode);

}  // namespace stfs
