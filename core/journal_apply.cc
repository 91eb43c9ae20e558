// Clone or copy.
#include "core/journal_apply.h"

#include <algorithm>
#include <vector>

namespace stfs {
namespace {

// Large enough that a system call's cost vanishes, small enough to stay in the L2 cache.
constexpr std::uint64_t kPieceBytes = 1 << 20;
// So much at a time the disk begins with before the sync asks for it.
constexpr std::uint64_t kWritebackBytes = 8 << 20;
// Below this, one write is cheaper than the metadata of shared blocks (DURABILITY.md).
constexpr std::uint64_t kCloneFromBytes = 1 << 20;

Result<void> copy_range(File& archive, const File& journal, ByteRange to, std::uint64_t from,
                        const OnBytes& on_bytes) {
  std::uint64_t begun = to.offset;  // so far the disk has been asked to begin
  return for_each_piece(journal, {from, to.size_bytes},
                        [&](std::span<const std::byte> piece, std::uint64_t at) -> Result<void> {
                          const std::uint64_t offset = to.offset + (at - from);
                          if (auto put = archive.write(piece, offset); !put) return put;
                          const std::uint64_t end = offset + piece.size();
                          if (end - begun >= kWritebackBytes) {
                            archive.begin_writeback({begun, end - begun});
                            begun = end;
                          }
                          if (on_bytes) on_bytes(piece.size());
                          return {};
                        });
}

}  // namespace

Result<void> for_each_piece(const File& file, ByteRange range, const OnPiece& on_piece) {
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kPieceBytes, range.size_bytes)));
  while (!range.empty()) {
    const auto piece = std::span(buffer).first(std::min<std::size_t>(buffer.size(), range.size_bytes));
    if (auto read = file.read(piece, range.offset); !read) return read;
    if (auto done = on_piece(piece, range.offset); !done) return done;
    range = {range.offset + piece.size(), range.size_bytes - piece.size()};
  }
  return {};
}

Result<std::vector<std::uint64_t>> hash_blocks(const File& file, ByteRange range, const OnBytes& on_bytes) {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(round_up_to_block(range.size_bytes) / kBlockBytes);
  auto read =
      for_each_piece(file, range, [&](std::span<const std::byte> piece, std::uint64_t) -> Result<void> {
        append_block_hashes(piece, hashes);
        if (on_bytes) on_bytes(piece.size());
        return {};
      });
  if (!read) return pass_on(std::move(read));
  return hashes;
}

Result<void> apply_ranges(File& archive, const File& journal, std::span<const JournalRange> ranges,
                          const OnBytes& on_bytes) {
  bool can_clone = true;
  for (const JournalRange& range : ranges) {
    ByteRange rest = range.archive;
    std::uint64_t from = range.journal_offset;
    if (const std::uint64_t whole = round_down_to_block(rest.size_bytes);
        can_clone && whole >= kCloneFromBytes) {
      auto cloned = archive.clone_from(journal, from, {rest.offset, whole});
      if (!cloned && cloned.error().errno_value != EOPNOTSUPP) return cloned;
      can_clone = cloned.has_value();
      if (can_clone) {
        rest = {rest.offset + whole, rest.size_bytes - whole};
        from += whole;
        if (on_bytes) on_bytes(whole);
      }
    }
    if (auto copied = copy_range(archive, journal, rest, from, on_bytes); !copied) return copied;
  }
  return {};
}

}  // namespace stfs
