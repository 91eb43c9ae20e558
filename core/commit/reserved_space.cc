// Holes are punched again. What lies behind the end goes when the file is cut to the size that it has.
#include "core/commit/reserved_space.h"

namespace stfs {
namespace {

/// The parts of a range that lie in fillers, so that no byte of them counts yet.
void add_free_parts(const ArchiveVersion& version, ByteRange range, std::vector<ByteRange>& parts) {
  for (const ByteRange filler : version.header->content.fillers) {
    const ByteRange part = version.file_range(filler).intersection(range);
    if (!part.empty()) parts.push_back(part);
  }
}

}  // namespace

Result<ReservedSpace> ReservedSpace::of(Archive& archive, const EditLayout& layout) {
  const auto version = archive.version();
  const std::uint64_t end = version->stamp.size_bytes;
  ReservedSpace reserved;
  reserved.archive_ = &archive;
  for (const EditLayout::Placed& placed : layout.placed) {
    add_free_parts(*version, placed.file_range, reserved.holes_);
  }
  std::vector<ByteRange> wanted = reserved.holes_;
  // Copies to fillers come before the commit point: no space is reserved for them, and a clone needs none.
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
  // A failure leaves space in use and changes no byte that counts.
  for (const ByteRange hole : holes_) static_cast<void>(archive_->file().punch(whole_blocks_in(hole)));
  static_cast<void>(archive_->file().resize(archive_->stamp().size_bytes));
}

}  // namespace stfs
