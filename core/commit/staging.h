// The pending bytes of one tensor: a writer has sent them, and no reader of the archive sees them yet.
//
// The bytes lie in a region of a journal, in whole blocks with the archive's alignment. So a commit can clone
// blocks instead of copying them, and memory does not grow with the tensor. Bytes that were never written are
// the tensor's old content, up to the smallest size that the writer has cut it to. Behind that they are
// zeros, as in any file.
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

/// Not synchronized: its owner serializes the calls. Offsets are relative to the tensor.
class Staging {
 public:
  /// The journal must outlive the staging.
  /// @param target  the tensor's absolute range in the archive.
  Staging(Journal& journal, ByteRange target);
  ~Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Stages the bytes. EFBIG, with nothing staged, if they would pass the tensor's end.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);

  /// Whether a write to this range can be done in two halves: its space is reserved (where the file system
  /// can do that) and was never written, so the write can fail only if the disk does. The staging's owner
  /// calls note(), then any thread calls put() with the same bytes. put() may run beside the put() and note()
  /// of other ranges. All other calls must wait until put() has returned.
  [[nodiscard]] bool takes_halves(ByteRange range) const {
    return !range.empty() && reserved_.contains(range);
  }
  Result<void> note(std::span<const std::byte> from, std::uint64_t offset);
  Result<void> put(std::span<const std::byte> from, std::uint64_t offset);

  /// Declares the whole content as staged before its bytes are in the journal: a commit copies them there.
  void expect_all();

  /// Cuts the content, or lengthens it with zeros, as ftruncate does. EFBIG past the tensor's size. Cutting
  /// to 0 announces a whole new content, so its space is reserved at once: ENOSPC, EDQUOT.
  Result<void> resize(std::uint64_t size_bytes);

  /// Reads the tensor's old bytes at an offset relative to the tensor.
  using ReadBase = std::function<Result<void>(std::span<std::byte> to, std::uint64_t offset)>;
  /// Reads the content as the writer sees it. The range must lie below size_bytes().
  Result<void> read(std::span<std::byte> to, std::uint64_t offset, const ReadBase& read_base);
  /// Writes the content up to this size, as `read_piece` gives it: piece by piece, in order.
  Result<void> write_all(std::uint64_t size_bytes, const ReadBase& read_piece);

  /// The current length of the content.
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// Whether anything was written or resized.
  [[nodiscard]] bool is_dirty() const { return is_dirty_; }
  /// Whether the content has exactly the tensor's size, so that it may be committed.
  [[nodiscard]] bool is_whole() const { return size_bytes_ == target_.size_bytes; }
  [[nodiscard]] ByteRange target() const { return target_; }

  /// Returns what a commit has to copy: absolute ranges of the archive, ascending, disjoint. Writes the zeros
  /// of holes to the journal first.
  [[nodiscard]] Result<std::vector<ByteRange>> pieces();
  /// The known hashes of the staged blocks.
  [[nodiscard]] const StagedHashes& hashes() const { return hashes_; }
  /// The place in the journal of the byte at an absolute offset of the archive. Defined for every whole block
  /// that the tensor touches.
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
  std::uint64_t kept_bytes_ = 0;                    // the old content shows through up to here
  std::map<std::uint64_t, std::uint64_t> extents_;  // begin -> end, disjoint, never adjacent
  ByteRange run_;                                   // the last sequential run of writes
  ByteRange reserved_;                              // reserved and never written
  bool may_reserve_ = true;
  bool is_dirty_ = false;
};

/// The stages of one archive, by tensor.
using Stages = std::map<TensorId, std::unique_ptr<Staging>>;

}  // namespace stfs
