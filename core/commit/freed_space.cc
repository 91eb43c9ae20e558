// Punches holes into fillers, under the locks of an edit.
#include "core/commit/freed_space.h"

#include <algorithm>
#include <vector>

#include "core/commit/commit_locks.h"

namespace stfs {

Result<void> give_back_fillers(Archive& archive, std::span<const ByteRange> kept,
                               const CommitOptions& options) {
  return guard_memory([&]() -> Result<void> {
    if (auto opened = archive.open_for_writing(); !opened) return opened;
    const auto locks = lock_for_edit(archive, options);
    if (!locks) return tl::unexpected(locks.error());
    if (auto same = check_archive(archive, options); !same) return same;
    ReadersKeptOut readers;
    if (options.uses_locks) {
      auto kept_out = ReadersKeptOut::of(archive);
      if (!kept_out) return pass_on(std::move(kept_out));
      readers = std::move(*kept_out);
    }
    std::vector<ByteRange> stays(kept.begin(), kept.end());
    std::ranges::sort(stays, {}, &ByteRange::offset);
    const auto version = archive.version();
    for (const ByteRange filler : version->header->content.fillers) {
      const ByteRange range = version->file_range(filler);
      std::uint64_t begin = range.offset;
      const auto punch_up_to = [&](std::uint64_t end) -> Result<void> {
        return begin < end ? archive.file().punch(whole_blocks_in({begin, end - begin})) : Result<void>{};
      };
      for (const ByteRange other : stays) {
        if (other.end() <= begin || other.offset >= range.end()) continue;
        if (auto punched = punch_up_to(other.offset); !punched) return punched;
        begin = other.end();
      }
      if (auto punched = punch_up_to(range.end()); !punched) return punched;
    }
    const auto written = archive.file().status();
    return written ? archive.adopt_own_change(written->identity) : tl::unexpected(written.error());
  });
}

}  // namespace stfs
