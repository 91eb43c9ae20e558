// The pending bytes of one tensor: what a writer has sent and no reader of the archive sees yet.
//
// Bytes lie in a file of their own that has no name, in the archive's directory, at offsets congruent
// to the archive's modulo 4096: a killed process leaves nothing behind, memory does not grow with the
// tensor, and whole blocks can later be cloned instead of copied. What was not written is the tensor's
// old content, up to where the writer has cut it; behind that it is zeros, as in any file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/byte_range.h"
#include "core/error.h"
#include "core/file.h"

namespace stfs {

/// Not synchronized: its owner serializes the calls. Offsets are relative to the tensor.
class Staging {
 public:
  /// @param target  the tensor's absolute range in the archive.
  static Result<Staging> create(Storage& storage, const std::filesystem::path& directory, ByteRange target);

  /// EFBIG, with nothing staged, where the bytes would pass the tensor's end.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  /// As ftruncate: cuts, or lengthens with zeros; EFBIG past the tensor's size.
  Result<void> resize(std::uint64_t size_bytes);

  /// Reads the tensor's old bytes at an offset relative to the tensor.
  using ReadBase = std::function<Result<void>(std::span<std::byte> to, std::uint64_t offset)>;
  /// The content as the writer sees it. The range must lie below size_bytes().
  Result<void> read(std::span<std::byte> to, std::uint64_t offset, const ReadBase& read_base) const;

  /// Length of the content now.
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// Something was written or resized since the beginning or the last forget().
  [[nodiscard]] bool is_dirty() const { return is_dirty_; }
  /// The content has exactly the tensor's size, so it may be committed.
  [[nodiscard]] bool is_whole() const { return size_bytes_ == target_.size_bytes; }
  [[nodiscard]] ByteRange target() const { return target_; }

  /// What a commit has to copy: in ascending order, disjoint, gaps that read as zeros included.
  [[nodiscard]] Result<std::vector<ByteRange>> pieces();
  /// Reads staged bytes of a piece.
  Result<void> read_piece(std::span<std::byte> to, std::uint64_t offset) const;

  /// Back to the tensor's content as the archive has it: after a commit, or to roll back.
  void forget();

 private:
  Staging(std::unique_ptr<File> file, ByteRange target)
      : file_(std::move(file)),
        target_(target),
        size_bytes_(target.size_bytes),
        kept_bytes_(target.size_bytes) {}
  [[nodiscard]] std::uint64_t file_offset(std::uint64_t offset) const;
  void add_extent(std::uint64_t begin, std::uint64_t end);
  void drop_extents_from(std::uint64_t begin);
  Result<void> fill_gap(std::uint64_t begin, std::uint64_t end);

  std::unique_ptr<File> file_;
  ByteRange target_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t kept_bytes_ = 0;                    // so far the old content shows through
  std::map<std::uint64_t, std::uint64_t> extents_;  // begin -> end, disjoint, never adjacent
  bool is_dirty_ = false;
};

}  // namespace stfs
