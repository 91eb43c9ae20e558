// The directories for bytes that can be fetched again.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
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
/// @return EPERM: another user may have made one of the directories, may write it, or serves it (FUSE).
///   ENOENT: there is no cache_directory().
Result<UniqueFd> open_own_cache(const std::filesystem::path& path);

/// Takes the next bytes of a file.
using TakePiece = std::function<Result<void>(std::span<const std::byte> piece)>;
/// Makes all pieces of a file.
using MakePieces = std::function<Result<void>(const TakePiece& take)>;

/// Whether a twentieth of the disk must stay free.
enum class KeepsFree : std::uint8_t { No, Yes };

/// Puts a whole file into a directory of the cache, in place of another one.
/// @param make  calls its argument for each piece of the file. After a failure, nothing is put there.
/// @return ENOSPC: less than a twentieth of the disk is free.
Result<void> put_in_cache(int directory, const std::string& name, const MakePieces& make, mode_t mode,
                          KeepsFree keeps_free = KeepsFree::Yes);
Result<void> put_in_cache(int directory, const std::string& name, std::span<const std::byte> bytes,
                          mode_t mode, KeepsFree keeps_free = KeepsFree::Yes);

}  // namespace stfs
