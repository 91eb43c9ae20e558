// Clones the blocks that lie alike in both places, and copies what is before and behind them.
#include "core/commit/space_copy.h"

#include <algorithm>

#include "core/journal/journal_format.h"
#include "core/storage/writeback.h"

namespace stfs {
namespace {

constexpr std::uint64_t kLeastClonedBytes = 1 << 20;  // less is copied as quickly
// One call of a clone takes the file system's lock on the file.
constexpr std::uint64_t kCloneAtOnceBytes = 1ULL << 30U;

class SpaceCopy {
 public:
  SpaceCopy(File& archive, const OnCopy& on_copy) : archive_(archive), on_copy_(on_copy) {}

  Result<void> run(const EditLayout::Copy& copy) {
    const ByteRange to = {copy.to, copy.size_bytes};
    const ByteRange blocks = whole_blocks_in(to);
    const bool lie_alike = (copy.from % kBlockBytes) == (copy.to % kBlockBytes);
    if (!can_clone_ || !lie_alike || blocks.size_bytes < kLeastClonedBytes) return write(copy);
    if (auto cloned = clone(copy.from + (blocks.offset - copy.to), blocks); !cloned) {
      if (cloned.error().errno_value != EOPNOTSUPP) return cloned;
      can_clone_ = false;
      return write(copy);
    }
    const std::uint64_t head_bytes = blocks.offset - copy.to;
    const std::uint64_t done_bytes = head_bytes + blocks.size_bytes;
    if (auto written = write({copy.from, copy.to, head_bytes}); !written) return written;
    return write({copy.from + done_bytes, copy.to + done_bytes, copy.size_bytes - done_bytes});
  }

 private:
  Result<void> clone(std::uint64_t from, ByteRange to) {
    while (!to.empty()) {
      const ByteRange piece = {to.offset, std::min(to.size_bytes, kCloneAtOnceBytes)};
      if (auto cloned = archive_.clone_from(archive_, from, piece); !cloned) return cloned;
      if (auto goes_on = tell(piece.size_bytes); !goes_on) return goes_on;
      from += piece.size_bytes;
      to = {piece.end(), to.size_bytes - piece.size_bytes};
    }
    return {};
  }

  Result<void> write(EditLayout::Copy copy) {
    while (copy.size_bytes > 0) {
      const ByteRange piece = {copy.to, std::min(Writeback::kWindowBytes, copy.size_bytes)};
      if (auto copied = archive_.copy_from(archive_, copy.from, piece); !copied) return copied;
      writeback_.follow(archive_, piece);
      if (auto goes_on = tell(piece.size_bytes); !goes_on) return goes_on;
      copy = {copy.from + piece.size_bytes, piece.end(), copy.size_bytes - piece.size_bytes};
    }
    return {};
  }

  Result<void> tell(std::uint64_t size_bytes) const {
    return on_copy_ ? on_copy_(size_bytes) : Result<void>();
  }

  File& archive_;
  const OnCopy& on_copy_;
  bool can_clone_ = true;
  Writeback writeback_;
};

}  // namespace

Result<void> copy_to_free_space(File& archive, std::span<const EditLayout::Copy> copies,
                                const OnCopy& on_copy) {
  SpaceCopy all(archive, on_copy);
  for (const EditLayout::Copy& copy : copies) {
    if (auto copied = all.run(copy); !copied) return copied;
  }
  return {};
}

}  // namespace stfs
