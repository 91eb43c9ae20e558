// The pending bytes of one tensor: what a writer has sent and no reader of the archive sees yet.
//
// Bytes lie in a region of a journal, in whole blocks that are aligned as the archive's are, so that a
// commit can clone blocks instead of copying them, and memory does not grow with the tensor. What was
// not written is the tensor's old content, up to where the writer has cut it; behind that it is zeros,
// as in any file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/staged_hashes.h"
#include "core/journal/journal.h"

namespace stfs {

/// Not synchronized: its owner serializes the calls. Offsets are relative to the tensor.
class Staging {
 public:
  /// The journal must outlive it.
  /// @param target  the tensor's absolute range in the archive.
  Staging(Journal& journal, ByteRange target);
  ~Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// EFBIG, with nothing staged, where the bytes would pass the tensor's end.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);

  /// Its space is reserved, where the file system can do that, and was never written: so a write there fails
  /// only with the disk. It can be done in two halves: note() by who owns the staging, then put() of the same
  /// bytes, beside put()s to other places and their notes. All other calls have to wait until it is back.
  [[nodiscard]] bool takes_halves(ByteRange range) const {
    return !range.empty() && reserved_.contains(range);
  }
  Result<void> note(std::span<const std::byte> from, std::uint64_t offset);
  Result<void> put(std::span<const std::byte> from, std::uint64_t offset);

  /// As ftruncate: cuts, or lengthens with zeros; EFBIG past the tensor's size. Cutting to nothing
  /// announces a whole new content, so its space is reserved at once: ENOSPC, EDQUOT.
  Result<void> resize(std::uint64_t size_bytes);

  /// Reads the tensor's old bytes at an offset relative to the tensor.
  using ReadBase = std::function<Result<void>(std::span<std::byte> to, std::uint64_t offset)>;
  /// The content as the writer sees it. The range must lie below size_bytes().
  Result<void> read(std::span<std::byte> to, std::uint64_t offset, const ReadBase& read_base);

  /// Length of the content now.
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// Something was written or resized.
  [[nodiscard]] bool is_dirty() const { return is_dirty_; }
  /// The content has exactly the tensor's size, so it may be committed.
  [[nodiscard]] bool is_whole() const { return size_bytes_ == target_.size_bytes; }
  [[nodiscard]] ByteRange target() const { return target_; }

  /// What a commit has to copy: absolute ranges of the archive, ascending, disjoint. Writes out the
  /// zeros of the holes first.
  [[nodiscard]] Result<std::vector<ByteRange>> pieces();
  /// Of what is staged, as far as they are known.
  [[nodiscard]] const StagedHashes& hashes() const { return hashes_; }
  /// Where in the journal the byte of that absolute offset of the archive has its place; defined for
  /// every whole block that the tensor touches.
  [[nodiscard]] std::uint64_t journal_offset(std::uint64_t archive_offset) const {
    return region_ + (archive_offset - round_down_to_block(target_.offset));
  }

 private:
  Result<void> resize_unguarded(std::uint64_t size_bytes);
  Result<std::vector<ByteRange>> pieces_unguarded();
  Result<void> write_unguarded(std::span<const std::byte> from, std::uint64_t offset);
  void note_unguarded(std::span<const std::byte> from, std::uint64_t offset);
  void note_run(ByteRange range);
  void reserve_ahead(ByteRange range);
  void add_extent(std::uint64_t begin, std::uint64_t end);
  void drop_extents_from(std::uint64_t begin);
  Result<void> fill_gap(std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] std::uint64_t place(std::uint64_t offset) const {
    return journal_offset(target_.offset + offset);
  }

  Journal& journal_;
  ByteRange target_;
  std::uint64_t region_ = 0;  // in the journal; begins with the block that holds the tensor's first byte
  StagedHashes hashes_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t kept_bytes_ = 0;                    // so far the old content shows through
  std::map<std::uint64_t, std::uint64_t> extents_;  // begin -> end, disjoint, never adjacent
  ByteRange run_;                                   // what was written last, in order
  ByteRange reserved_;                              // and never written
  bool may_reserve_ = true;
  bool is_dirty_ = false;
};

}  // namespace stfs
