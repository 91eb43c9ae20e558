// The pending bytes of one tensor: a writer has sent them, and readers of the archive do not see them yet.
//
// The bytes are in a region of a journal, in whole blocks with the archive's alignment. A commit can
// therefore clone blocks instead of copying them, and memory does not grow with the tensor. Bytes that were
// never written are the tensor's old content, up to the smallest size that the writer has cut the content to.
// Behind that size they are zeros, as in any file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/commit/staged_hashes.h"
#include "core/format/tensor_id.h"
#include "core/journal/journal.h"

namespace stfs {

/// Not synchronized: the owner serializes the calls. Offsets are relative to the tensor.
class Staging {
 public:
  /// The journal must outlive the staging.
  /// @param target  the tensor's absolute range in the archive.
  Staging(Journal& journal, ByteRange target);
  ~Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Stages the bytes. EFBIG, with nothing staged: the bytes would pass the tensor's end.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);

  /// Returns true if a write to this range can be done in two halves. Its space is reserved (if the file
  /// system can do that) and was never written, so the write fails only if the disk fails. The staging's
  /// owner calls note(), then any thread calls put() with the same bytes. put() may run beside the put() and
  /// note() of other ranges. All other calls must wait until put() has returned.
  [[nodiscard]] bool takes_halves(ByteRange range) const {
    return !range.empty() && reserved_.contains(range);
  }
  Result<void> note(std::span<const std::byte> from, std::uint64_t offset);
  Result<void> put(std::span<const std::byte> from, std::uint64_t offset);

  /// Declares the whole content as staged before its bytes are in the journal. A commit copies the bytes
  /// there.
  void expect_all();

  /// Cuts the content, or lengthens it with zeros, as ftruncate does. EFBIG: the size is above the tensor's
  /// size. A cut to 0 announces a whole new content, so its space is reserved at once: ENOSPC, EDQUOT.
  Result<void> resize(std::uint64_t size_bytes);

  /// Reads the tensor's old bytes at an offset relative to the tensor.
  using ReadBase = std::function<Result<void>(std::span<std::byte> to, std::uint64_t offset)>;
  /// Reads the content as the writer sees it. The range must end at or before size_bytes().
  Result<void> read(std::span<std::byte> to, std::uint64_t offset, const ReadBase& read_base);
  /// Writes the content up to this size. `read_piece` returns it piece by piece, in order.
  Result<void> write_all(std::uint64_t size_bytes, const ReadBase& read_piece);

  /// The current length of the content.
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// Returns true if anything was written or resized.
  [[nodiscard]] bool is_dirty() const { return is_dirty_; }
  /// Returns true if the content has exactly the tensor's size, so that it may be committed.
  [[nodiscard]] bool is_whole() const { return size_bytes_ == target_.size_bytes; }
  [[nodiscard]] ByteRange target() const { return target_; }

  /// Returns the ranges that a commit has to copy: absolute ranges of the archive, ascending, disjoint. First
  /// writes the zeros of holes to the journal.
  [[nodiscard]] Result<std::vector<ByteRange>> pieces();
  /// The known hashes of the staged blocks.
  [[nodiscard]] const StagedHashes& hashes() const { return hashes_; }
  /// Returns the place in the journal of the byte at an absolute offset of the archive. Defined for every
  /// whole block that the tensor touches.
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
  std::uint64_t region_ = 0;  // in the journal; starts with the block of the tensor's first byte
  StagedHashes hashes_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t kept_bytes_ = 0;                    // the old content is visible up to here
  std::map<std::uint64_t, std::uint64_t> extents_;  // begin -> end, disjoint, never adjacent
  ByteRange run_;                                   // the last sequential run of writes
  ByteRange reserved_;                              // reserved and never written
  bool may_reserve_ = true;
  bool is_dirty_ = false;
};

/// The stages of one archive, by tensor.
using Stages = std::map<TensorId, std::unique_ptr<Staging>>;

}  // namespace stfs
