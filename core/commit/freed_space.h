// Gives back the disk space of deleted tensors whose bytes an edit has kept, because a program was reading
// them (ArchiveEdit::keeps_deleted).
#pragma once

#include <span>

#include "core/archive/archive.h"
#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/commit_options.h"

namespace stfs {

/// Frees what fillers take on the disk, except for kept ranges. The archive's bytes that tensors have do not
/// change, so a crash at any moment harms nothing. No commit of this Archive may run meanwhile.
/// @param kept  absolute.
/// @return Busy (EBUSY): another process reads the archive or changes it.
Result<void> give_back_fillers(Archive& archive, std::span<const ByteRange> kept,
                               const CommitOptions& options);

}  // namespace stfs
