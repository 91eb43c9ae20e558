#include "core/journal/journal_apply.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/parallel.h"
#include "core/journal/byte_patch.h"
#include "core/storage/writeback.h"

namespace stfs {
namespace {

Result<void> tell(const OnWritten& on_written, ByteRange piece) {
  return on_written ? on_written(piece) : Result<void>{};
}

Result<void> copy_range(File& archive, const File& journal, ByteRange to, std::uint64_t from,
                        Writeback& writeback, const OnWritten& on_written) {
  while (!to.empty()) {
    const ByteRange piece = {to.offset, std::min(Writeback::kWindowBytes, to.size_bytes)};
    RETURN_IF_ERROR(archive.copy_from(journal, from, piece));
    writeback.follow(archive, piece);
    RETURN_IF_ERROR(tell(on_written, piece));
    from += piece.size_bytes;
    to = {piece.end(), to.size_bytes - piece.size_bytes};
  }
  return {};
}

/// @param can_clone  set to false once the file system has refused to clone.
Result<void> write_blocks(File& archive, const File& journal, const JournalRange& range, bool& can_clone,
                          Writeback& writeback, const OnWritten& on_written) {
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
      if (auto told = tell(on_written, {rest.offset - whole, whole}); !told) return told;
    }
  }
  return copy_range(archive, journal, rest, from, writeback, on_written);
}

/// Patches the blocks with changed bytes, and writes no others. Used by one thread.
class Patcher {
 public:
  Result<void> apply(File& archive, const File& journal, const JournalRange& range, Writeback& writeback) {
    auto patch = read_patch(journal, range, region_);
    RETURN_IF_ERROR(patch);
    return patch->for_each_run([&](const BytePatch::Run& run) -> Result<void> {
      bytes_.resize(static_cast<std::size_t>(run.range.size_bytes));
      RETURN_IF_ERROR(archive.read(bytes_, run.range.offset));
      patch->apply(run, bytes_);
      RETURN_IF_ERROR(archive.write(bytes_, run.range.offset));
      writeback.follow(archive, run.range);
      return {};
    });
  }

 private:
  std::vector<std::byte> region_;
  std::vector<std::byte> bytes_;
};

/// Decoding patches takes longer than writing them: several threads share the work if there are many patches.
Result<void> apply_patches(File& archive, const File& journal, std::span<const JournalRange> ranges,
                           Writeback& writeback, const OnWritten& on_written) {
  constexpr std::size_t kParallelFrom = 16;  // patches
  const unsigned threads = ranges.size() < kParallelFrom ? 1 : usable_processors();
  std::vector<Patcher> patchers(threads);
  Mutex mutex;  // on_written runs on one thread at a time
  return run_parallel(ranges.size(), threads, [&](std::size_t at, unsigned worker) -> Result<void> {
    RETURN_IF_ERROR(patchers[worker].apply(archive, journal, ranges[at], writeback));
    const MutexLock lock(mutex);
    return tell(on_written, ranges[at].archive);
  });
}

Result<void> apply_blocks(File& archive, const File& journal, std::span<const JournalRange> ranges,
                          const OnWritten& on_written) {
  bool can_clone = true;
  Writeback writeback;
  for (std::size_t at = 0; at < ranges.size();) {
    if (!ranges[at].is_patch()) {
      RETURN_IF_ERROR(write_blocks(archive, journal, ranges[at++], can_clone, writeback, on_written));
      continue;
    }
    std::size_t end = at;
    while (end < ranges.size() && ranges[end].is_patch()) ++end;
    RETURN_IF_ERROR(apply_patches(archive, journal, ranges.subspan(at, end - at), writeback, on_written));
    at = end;
  }
  return {};
}

Result<void> apply_edit(File& archive, const File& journal, std::span<const JournalRange> ranges,
                        const ArchiveShape& after, const OnWritten& on_written) {
  RETURN_IF_ERROR(archive.write(kNoHeaderLength, 0));
  RETURN_IF_ERROR(archive.sync());

  const JournalRange& front = ranges.front();
  std::array<std::byte, kBlockBytes> block;
  const auto first = std::span(block).first(std::min(kBlockBytes, front.archive.size_bytes));
  RETURN_IF_ERROR(journal.read(first, front.journal_offset));
  std::array<std::byte, kNoHeaderLength.size()> length{};
  std::ranges::copy(first.first(length.size()), length.begin());
  std::ranges::copy(kNoHeaderLength, first.begin());
  RETURN_IF_ERROR(archive.write(first, 0));
  if (auto told = tell(on_written, {0, first.size()}); !told) return told;
  const JournalRange rest{.archive = {first.size(), front.archive.size_bytes - first.size()},
                          .journal_offset = front.journal_offset + first.size(),
                          .new_hashes = {},
                          .old_hashes = {}};
  if (auto written = apply_blocks(archive, journal, {&rest, 1}, on_written); !written) return written;
  RETURN_IF_ERROR(apply_blocks(archive, journal, ranges.subspan(1), on_written));
  auto size_bytes = archive.size_bytes();
  RETURN_IF_ERROR(size_bytes);
  if (*size_bytes != after.size_bytes) {
    RETURN_IF_ERROR(archive.resize(after.size_bytes));
  }
  RETURN_IF_ERROR(archive.sync());

  return archive.write(length, 0);
}

}  // namespace

Result<void> hash_blocks(const File& file, ByteRange range, std::span<std::uint64_t> hashes,
                         const OnBytes& on_bytes) {
  return for_each_piece(file, range, [&](std::span<const std::byte> piece, std::uint64_t) -> Result<void> {
    hashes = put_block_hashes(piece, hashes);
    if (on_bytes) on_bytes(piece.size());
    return {};
  });
}

Result<std::vector<std::uint64_t>> hash_blocks(const File& file, ByteRange range) {
  std::vector<std::uint64_t> hashes(round_up_to_block(range.size_bytes) / kBlockBytes);
  if (auto read = hash_blocks(file, range, hashes, {}); !read) return pass_on(std::move(read));
  return hashes;
}

Result<void> apply_ranges(File& archive, const File& journal, std::span<const JournalRange> ranges,
                          const OnWritten& on_written, const std::optional<ArchiveShape>& after) {
  return after ? apply_edit(archive, journal, ranges, *after, on_written)
               : apply_blocks(archive, journal, ranges, on_written);
}

}  // namespace stfs
