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

/// Called with the number of bytes that were done since the last call.
using OnBytes = std::function<void(std::uint64_t)>;
/// Called after each piece of the archive that was written. An error ends the work.
using OnWritten = std::function<Result<void>(ByteRange piece)>;

/// Clones long ranges (FICLONERANGE) where the file system can, and copies the rest. Does not sync, but for
/// an edit (below). May be repeated any number of times (journal.h, invariant 6).
///
/// An edit changes the header, which may lie in several blocks. A program that does not know journals must
/// never read half of it, not even after a loss of power. So the archive gets a length that every reader
/// refuses (kNoHeaderLength) before anything else is written, and the new length after all else; each lies in
/// one sector, and a sync before and after keeps the order.
/// @param after  set for an edit; its first range then begins with the header.
Result<void> apply_ranges(File& archive, const File& journal, std::span<const JournalRange> ranges,
                          const OnWritten& on_written = {}, const std::optional<ArchiveShape>& after = {});

/// Returns the hash of each block of a range that starts at a multiple of 4096.
Result<std::vector<std::uint64_t>> hash_blocks(const File& file, ByteRange range);
/// The same, but writes the hashes to the beginning of `hashes`.
Result<void> hash_blocks(const File& file, ByteRange range, std::span<std::uint64_t> hashes,
                         const OnBytes& on_bytes = {});

}  // namespace stfs
