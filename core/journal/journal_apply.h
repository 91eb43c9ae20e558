// Writes a journal's blocks into the archive. Commit and recovery share this loop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

/// From this size on, sharing blocks is cheaper than writing or reading them (core/DURABILITY.md).
inline constexpr std::uint64_t kCloneFromBytes = 1 << 20;

/// Called with the number of bytes that were hashed since the last call.
using OnBytes = std::function<void(std::uint64_t)>;
/// Called after each piece of the archive that was written. An error ends the work.
using OnWritten = std::function<Result<void>(ByteRange piece)>;

/// Clones long ranges (FICLONERANGE) if the file system can, and copies the rest. Syncs nothing, except in an
/// edit (below). May be repeated any number of times (journal.h, invariant 6).
///
/// An edit changes the header, which may be in several blocks. A program that does not know journals must
/// never read half of it, not even after a loss of power. The first write of an edit sets a length that every
/// reader refuses (kNoHeaderLength), and the last write sets the new length. Each length is in one sector,
/// and a sync before and after keeps the order.
/// @param after  set for an edit; its first range then begins with the header.
Result<void> apply_ranges(File& archive, const File& journal, std::span<const JournalRange> ranges,
                          const OnWritten& on_written = {}, const std::optional<ArchiveShape>& after = {});

/// Returns the hash of each block of a range that starts at a multiple of 4096.
Result<std::vector<std::uint64_t>> hash_blocks(const File& file, ByteRange range);
/// Does the same, but writes the hashes to the beginning of `hashes`.
Result<void> hash_blocks(const File& file, ByteRange range, std::span<std::uint64_t> hashes,
                         const OnBytes& on_bytes = {});

}  // namespace stfs
