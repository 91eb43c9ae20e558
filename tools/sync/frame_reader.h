// Decompresses one zstd frame in order, in bounded memory.
//
// Anybody may have written the frame. Memory is the window of the frame, at most 8 MiB, and about 400 KiB
// besides; a frame of `zstd -1` has a window of 512 KiB. RFC 8878 (3.1.1.1.2) recommends that decoders
// support 8 MiB and that encoders need no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "tools/sync/diff_encoding.h"

struct ZSTD_DCtx_s;  // of zstd.h

namespace stfs::sync {

/// Used by one thread, for any number of frames: its memory is kept from one to the next.
class FrameReader {
 public:
  FrameReader();

  /// Begins with a frame. EINVAL: the diff does not begin with a zstd frame.
  Result<void> start(CompressedDiff diff);
  /// The size of the frame's content, if the frame tells it. The size is a claim until finish() succeeds.
  [[nodiscard]] std::optional<std::uint64_t> content_bytes() const { return content_bytes_; }
  /// Decompresses the next bytes. No more of the frame is expanded than this needs, but for one block of 128
  /// KiB.
  /// @return how many bytes there were: fewer than `to` has only where the frame ends. EINVAL: the frame is
  ///   damaged, cut short, or needs a larger window; otherwise the errors of CompressedDiff::read.
  Result<std::size_t> read(std::span<std::byte> to);
  /// Decompresses and drops the next bytes.
  /// @return as read().
  Result<std::uint64_t> skip(std::uint64_t size_bytes);
  /// Checks that the frame ends here, and the diff with the frame. EINVAL: one of the two does not.
  Result<void> finish();

 private:
  struct Free {
    void operator()(ZSTD_DCtx_s* context) const;
  };
  /// Reads the next compressed bytes if all before are used.
  Result<void> refill();
  /// One call of zstd. @return whether anything was read or written.
  Result<bool> step(std::span<std::byte> to, std::size_t& done);

  CompressedDiff diff_;
  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
  std::vector<std::byte> fetched_;     // compressed bytes
  std::span<const std::byte> unused_;  // of them
  std::vector<std::byte> dropped_;     // by skip()
  std::uint64_t fetched_bytes_ = 0;    // of diff_
  std::uint64_t expanded_bytes_ = 0;
  std::optional<std::uint64_t> content_bytes_;
  bool is_ended_ = false;
};

}  // namespace stfs::sync
