// Copies bytes of an archive to space of it that no tensor has: a filler. Nobody reads that space, so a crash
// in the middle leaves a valid archive, and no journal is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/base/error.h"
#include "core/commit/archive_edit.h"
#include "core/storage/file.h"

namespace stfs {

/// Called with the bytes of each piece. A failure ends the copying.
using OnCopy = std::function<Result<void>(std::uint64_t size_bytes)>;

/// Clones whole blocks where the file system can, and copies the other bytes. No space is reserved: a write
/// that fails for lack of it has changed no byte that counts. The caller holds the archive's lock for edits,
/// keeps readers out, and syncs the archive afterwards.
/// @param copies  no target overlaps a source.
/// @return also ENOSPC, EDQUOT. What was copied by then is in space that no tensor has.
Result<void> copy_to_free_space(File& archive, std::span<const EditLayout::Copy> copies,
                                const OnCopy& on_copy);

}  // namespace stfs
