#include "core/commit/edit_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "core/commit/commit_locks.h"
#include "core/format/header.h"
#include "core/journal/journal_format.h"
#include "core/storage/writeback.h"

namespace stfs {
namespace {

constexpr std::uint64_t kLeastClonedBytes = 1 << 20;  // a smaller copy is as quick as a clone
// One call of a clone takes the file system's lock on the file.
constexpr std::uint64_t kCloneAtOnceBytes = 1ULL << 30U;

/// Clones the blocks that have the same alignment in both places, and copies the bytes before and behind
/// them.
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
      RETURN_IF_ERROR(archive_.clone_from(archive_, from, piece));
      RETURN_IF_ERROR(tell(piece.size_bytes));
      from += piece.size_bytes;
      to = {piece.end(), to.size_bytes - piece.size_bytes};
    }
    return {};
  }

  Result<void> write(EditLayout::Copy copy) {
    while (copy.size_bytes > 0) {
      const ByteRange piece = {copy.to, std::min(Writeback::kWindowBytes, copy.size_bytes)};
      RETURN_IF_ERROR(archive_.copy_from(archive_, copy.from, piece));
      writeback_.follow(archive_, piece);
      RETURN_IF_ERROR(tell(piece.size_bytes));
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

/// Adds the parts of a range that are in fillers, so that no tensor has their bytes yet.
void add_free_parts(const ArchiveVersion& version, ByteRange range, std::vector<ByteRange>& parts) {
  for (const ByteRange filler : version.header->content.fillers) {
    const ByteRange part = version.file_range(filler).intersection(range);
    if (!part.empty()) parts.push_back(part);
  }
}

}  // namespace

Result<std::uint64_t> data_offset_with_room(std::uint64_t least_bytes, std::uint64_t room_bytes) {
  constexpr std::uint64_t kPageBytes = 4096;
  const std::uint64_t data_at = (least_bytes + room_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (data_at - kHeaderLengthBytes <= kMaxHeaderBytes) return data_at;
  return fail(ErrorCode::HeaderTooLarge, EFBIG,
              fmt::format("a header of {} bytes with its padding, at most {} are allowed",
                          data_at - kHeaderLengthBytes, kMaxHeaderBytes));
}

// Lists empty tensors first, then tensors and fillers in the order of their bytes.
Result<FormattedHeader> format_edit_header(const ArchiveEdit& edit, std::span<const TensorAt> placed,
                                           std::uint64_t data_at, std::uint64_t end) {
  std::vector<Tensor> listed;
  listed.reserve(edit.tensors.size());
  const auto add = [&](std::uint32_t at) {
    listed.push_back({edit.tensors[at].name, edit.tensors[at].dtype, edit.tensors[at].shape, {}});
  };
  std::vector<bool> has_bytes(edit.tensors.size());
  for (const TensorAt& tensor : placed) has_bytes[tensor.tensor] = true;
  for (std::uint32_t at = 0; at < has_bytes.size(); ++at) {
    if (!has_bytes[at]) add(at);
  }
  std::deque<std::string> filler_names;
  std::deque<std::uint64_t> filler_sizes;
  std::uint64_t covered = data_at;
  const auto fill_up_to = [&](std::uint64_t next) {
    if (covered >= next) return;
    const std::string& name =
        filler_names.emplace_back(fmt::format("{}{}", kFillerPrefix, filler_names.size()));
    const std::uint64_t& size_bytes = filler_sizes.emplace_back(next - covered);
    listed.push_back({name, Dtype::U8, {&size_bytes, 1}, {}});
  };
  for (const TensorAt& tensor : placed) {
    fill_up_to(tensor.range.offset);
    add(tensor.tensor);
    covered = tensor.range.end();
  }
  fill_up_to(end);
  return format_tensors(listed, edit.metadata);
}

Result<void> copy_to_free_space(File& archive, std::span<const EditLayout::Copy> copies,
                                const OnCopy& on_copy) {
  SpaceCopy all(archive, on_copy);
  for (const EditLayout::Copy& copy : copies) {
    RETURN_IF_ERROR(all.run(copy));
  }
  return {};
}

Result<ReservedSpace> ReservedSpace::of(Archive& archive, const EditLayout& layout) {
  const auto version = archive.version();
  const std::uint64_t end = version->stamp.size_bytes;
  ReservedSpace reserved;
  reserved.archive_ = &archive;
  for (const EditLayout::Placed& placed : layout.placed) {
    add_free_parts(*version, placed.file_range, reserved.holes_);
  }
  std::vector<ByteRange> wanted = reserved.holes_;
  // Copies to fillers precede the commit point, so no space is reserved for them, and a clone needs none.
  for (const EditLayout::Copy& copy : layout.copies) reserved.holes_.push_back({copy.to, copy.size_bytes});
  if (layout.size_bytes > end) wanted.push_back({end, layout.size_bytes - end});
  for (const ByteRange range : wanted) {
    if (auto done = archive.file().reserve(range); !done) {
      return tl::unexpected(std::move(done).error().within(archive.path().string()));
    }
  }
  return reserved;
}

ReservedSpace::~ReservedSpace() {
  if (archive_ == nullptr) return;
  // The cut to the present size frees the space that was reserved behind the end. A failure leaves space in
  // use and changes no byte of a tensor.
  for (const ByteRange hole : holes_) static_cast<void>(archive_->file().punch(whole_blocks_in(hole)));
  static_cast<void>(archive_->file().resize(archive_->stamp().size_bytes));
}

Result<void> give_back_fillers(Archive& archive, std::span<const ByteRange> kept,
                               const CommitOptions& options) {
  return guard_memory([&]() -> Result<void> {
    RETURN_IF_ERROR(archive.open_for_writing());
    RETURN_IF_ERROR(lock_for_edit(archive, options));
    RETURN_IF_ERROR(check_archive(archive, options));
    ReadersKeptOut readers;
    if (options.uses_locks) {
      auto kept_out = ReadersKeptOut::of(archive);
      RETURN_IF_ERROR(kept_out);
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
        RETURN_IF_ERROR(punch_up_to(other.offset));
        begin = other.end();
      }
      RETURN_IF_ERROR(punch_up_to(range.end()));
    }
    const auto written = archive.file().status();
    return written ? archive.adopt_own_change(written->identity) : tl::unexpected(written.error());
  });
}

}  // namespace stfs
