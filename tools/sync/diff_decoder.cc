// Applies xor directly from the decompressed piece, and overwrite in batches of positions and values.
#include "tools/sync/diff_decoder.h"

#include <zstd.h>

#include <algorithm>
#include <bit>
#include <new>
#include <optional>
#include <utility>

namespace stfs::sync {
namespace {

static_assert(std::endian::native == std::endian::little, "positions are read as they lie in the diff");

// Fits into the second-level cache of any processor, together with the caller's bytes.
constexpr std::size_t kPieceBytes = 128 * 1024;
/// Positions of a batch. A larger diff is read with one frame for its positions and one for its values.
constexpr std::uint64_t kBatch = 128 * 1024;
constexpr std::size_t kCountBytes = 4;
constexpr std::size_t kPositionBytes = 4;
constexpr std::uint64_t kFetchedBytes = 128 * 1024;
constexpr int kMostWindowLog = 23;
constexpr std::size_t kMagicBytes = 4;

bool has_magic_number(std::span<const std::byte> bytes) {
  if (bytes.size() < kMagicBytes) return false;
  std::uint32_t magic = 0;
  for (std::size_t at = kMagicBytes; at > 0; --at) {
    magic = magic << 8U | std::to_integer<std::uint32_t>(bytes[at - 1]);
  }
  return magic == ZSTD_MAGICNUMBER;
}

}  // namespace

/// Decompresses one zstd frame after another, each in order, in bounded memory. Any user may have written a
/// frame. RFC 8878 (3.1.1.1.2) recommends that decoders support a window of 8 MiB and that encoders need no
/// larger window; a frame of `zstd -1` has one of 512 KiB.
class DiffDecoder::Frame {
 public:
  Frame() : context_(ZSTD_createDCtx()) {
    if (context_ == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kMostWindowLog);
  }
  ~Frame() { ZSTD_freeDCtx(context_); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  /// Begins with a frame. EINVAL: the diff does not begin with a zstd frame.
  Result<void> start(CompressedDiff diff) {
    ZSTD_DCtx_reset(context_, ZSTD_reset_session_only);
    diff_ = std::move(diff);
    unused_ = {};
    fetched_bytes_ = 0;
    expanded_bytes_ = 0;
    content_bytes_.reset();
    is_ended_ = false;
    if (diff_.size_bytes == 0) return damaged("the diff is empty, expected a zstd frame");
    RETURN_IF_ERROR(refill());
    if (!has_magic_number(unused_)) return damaged("the diff is no zstd frame");
    const unsigned long long content = ZSTD_getFrameContentSize(unused_.data(), unused_.size());
    if (content == ZSTD_CONTENTSIZE_ERROR) return damaged("the header of the zstd frame is damaged");
    if (content != ZSTD_CONTENTSIZE_UNKNOWN) content_bytes_ = content;
    return {};
  }

  /// Returns the size of the content, if the frame has it. The size is a claim until finish() succeeds.
  [[nodiscard]] std::optional<std::uint64_t> content_bytes() const { return content_bytes_; }
  /// Decompresses the next bytes. At most one block of 128 KiB more than needed is expanded.
  /// @return the number of bytes, smaller than `to` only at the end of the frame. EINVAL: the frame is
  ///   damaged, cut short, or needs a larger window; otherwise the errors of CompressedDiff::read.
  Result<std::size_t> read(std::span<std::byte> to) {
    std::size_t done = 0;
    while (done < to.size() && !is_ended_) {
      const auto has_moved = step(to, done);
      RETURN_IF_ERROR(has_moved);
      if (!*has_moved && !is_ended_) {
        return damaged("the zstd frame is cut short: it has only {} bytes", diff_.size_bytes);
      }
    }
    return done;
  }

  /// Checks that the frame ends here, and that the diff ends with the frame. EINVAL: one of the two does not
  /// end.
  Result<void> finish() {
    std::byte more{};
    const auto size_bytes = read({&more, 1});
    RETURN_IF_ERROR(size_bytes);
    if (*size_bytes > 0) {
      return damaged("the diff expands to more than the {} bytes that are due", expanded_bytes_ - 1);
    }
    const std::uint64_t behind_bytes = unused_.size() + diff_.size_bytes - fetched_bytes_;
    if (behind_bytes == 0) return {};
    RETURN_IF_ERROR(refill());
    return damaged("{} bytes follow the zstd frame{}", behind_bytes,
                   has_magic_number(unused_) ? ", a second frame" : "");
  }

 private:
  /// Reads the next compressed bytes if all earlier ones are used.
  Result<void> refill() {
    const std::uint64_t size_bytes = std::min(kFetchedBytes, diff_.size_bytes - fetched_bytes_);
    if (!unused_.empty() || size_bytes == 0) return {};
    fetched_.resize(kFetchedBytes);
    const auto to = std::span(fetched_).first(static_cast<std::size_t>(size_bytes));
    RETURN_IF_ERROR(diff_.read(fetched_bytes_, to));
    unused_ = to;
    fetched_bytes_ += size_bytes;
    return {};
  }

  /// Makes one call of zstd. @return true if any byte was read or written.
  Result<bool> step(std::span<std::byte> to, std::size_t& done) {
    RETURN_IF_ERROR(refill());
    ZSTD_inBuffer in{unused_.data(), unused_.size(), 0};
    ZSTD_outBuffer out{to.data(), to.size(), done};
    const std::size_t left = ZSTD_decompressStream(context_, &out, &in);
    if (ZSTD_isError(left) != 0) return damaged("the zstd frame: {}", ZSTD_getErrorName(left));
    const bool has_moved = in.pos > 0 || out.pos > done;
    unused_ = unused_.subspan(in.pos);
    expanded_bytes_ += out.pos - done;
    done = out.pos;
    is_ended_ = left == 0;
    return has_moved;
  }

  ZSTD_DCtx* context_;
  CompressedDiff diff_;
  std::vector<std::byte> fetched_;     // compressed bytes
  std::span<const std::byte> unused_;  // part of fetched_
  std::uint64_t fetched_bytes_ = 0;    // read from diff_
  std::uint64_t expanded_bytes_ = 0;
  std::optional<std::uint64_t> content_bytes_;
  bool is_ended_ = false;
};

DiffDecoder::DiffDecoder()
    : frame_(std::make_unique<Frame>()), piece_(kPieceBytes), second_frame_(std::make_unique<Frame>()) {}
DiffDecoder::~DiffDecoder() = default;

Result<void> DiffDecoder::start(DiffEncoding encoding, CompressedDiff diff, std::uint64_t tensor_bytes) {
  encoding_ = encoding;
  tensor_bytes_ = tensor_bytes;
  at_ = 0;
  due_bytes_ = tensor_bytes;
  values_frame_ = frame_.get();
  positions_.clear();
  values_.clear();
  in_batch_ = 0;
  left_ = 0;
  least_position_ = 0;
  RETURN_IF_ERROR(frame_->start(diff));
  if (encoding == DiffEncoding::Overwrite) return start_overwrite(diff);
  if (const auto content = frame_->content_bytes(); content.value_or(tensor_bytes) != tensor_bytes) {
    return damaged("the diff expands to {} bytes, the tensor has {}", *content, tensor_bytes);
  }
  return {};
}

Result<void> DiffDecoder::start_overwrite(const CompressedDiff& diff) {
  due_bytes_ = kCountBytes;
  std::uint32_t count = 0;
  RETURN_IF_ERROR(read_exactly(*frame_, std::as_writable_bytes(std::span(&count, 1))));
  if (count > tensor_bytes_) {
    return damaged("the diff changes {} bytes, the tensor has {}", count, tensor_bytes_);
  }
  due_bytes_ = overwrite_size_bytes(count);
  if (const auto content = frame_->content_bytes(); content.value_or(due_bytes_) != due_bytes_) {
    return damaged("the diff expands to {} bytes, but {} changes need {}", *content, count, due_bytes_);
  }
  left_ = count;
  if (count <= kBatch) return {};
  values_frame_ = second_frame_.get();
  RETURN_IF_ERROR(values_frame_->start(diff));
  const std::uint64_t before_bytes = kCountBytes + std::uint64_t{kPositionBytes} * count;
  for (std::uint64_t skipped_bytes = 0; skipped_bytes < before_bytes;) {
    const auto piece = std::span(piece_).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(piece_.size(), before_bytes - skipped_bytes)));
    const auto read_bytes = values_frame_->read(piece);
    RETURN_IF_ERROR(read_bytes);
    skipped_bytes += *read_bytes;
    if (*read_bytes == piece.size()) continue;
    return damaged("the diff expands to {} bytes, but {} changes need {}", skipped_bytes, count, due_bytes_);
  }
  return {};
}

Result<void> DiffDecoder::read_exactly(Frame& frame, std::span<std::byte> to) {
  const auto size_bytes = frame.read(to);
  RETURN_IF_ERROR(size_bytes);
  if (*size_bytes == to.size()) return {};
  return damaged("the diff expands to less than the {} bytes that are due", due_bytes_);
}

Result<bool> DiffDecoder::apply(std::span<std::byte> bytes) {
  if (bytes.size() > tensor_bytes_ - at_) {
    return damaged("{} bytes are applied to a tensor of {}", at_ + bytes.size(), tensor_bytes_);
  }
  auto changed = encoding_ == DiffEncoding::Xor ? apply_xor(bytes) : apply_overwrite(bytes);
  at_ += bytes.size();
  return changed;
}

Result<bool> DiffDecoder::apply_xor(std::span<std::byte> bytes) {
  bool has_changed = false;
  while (!bytes.empty()) {
    const auto piece = std::span(piece_).first(std::min(bytes.size(), piece_.size()));
    RETURN_IF_ERROR(read_exactly(*frame_, piece));
    has_changed |= xor_into(bytes.first(piece.size()), piece);
    bytes = bytes.subspan(piece.size());
  }
  return has_changed;
}

Result<bool> DiffDecoder::apply_overwrite(std::span<std::byte> bytes) {
  const std::uint64_t end = at_ + bytes.size();
  bool has_changed = false;
  for (;;) {
    if (in_batch_ == positions_.size()) {
      if (left_ == 0) return has_changed;
      RETURN_IF_ERROR(next_batch());
    }
    for (; in_batch_ < positions_.size(); ++in_batch_) {
      const std::uint32_t position = positions_[in_batch_];
      if (position >= end) return has_changed;
      std::byte& byte = bytes[static_cast<std::size_t>(position - at_)];
      has_changed |= byte != values_[in_batch_];
      byte = values_[in_batch_];
    }
  }
}

Result<void> DiffDecoder::next_batch() {
  const auto count = static_cast<std::size_t>(std::min(kBatch, left_));
  positions_.resize(count);
  values_.resize(count);
  in_batch_ = 0;
  left_ -= count;
  RETURN_IF_ERROR(read_exactly(*frame_, std::as_writable_bytes(std::span(positions_))));
  RETURN_IF_ERROR(check_batch());
  return read_exactly(*values_frame_, values_);
}

Result<void> DiffDecoder::check_batch() {
  for (const std::uint32_t position : positions_) {
    if (position < least_position_) {
      return damaged("position {} follows position {}: positions must ascend", position, least_position_ - 1);
    }
    least_position_ = std::uint64_t{position} + 1;
  }
  if (least_position_ <= tensor_bytes_) return {};
  return damaged("position {} is outside of the tensor of {} bytes", least_position_ - 1, tensor_bytes_);
}

Result<void> DiffDecoder::finish() {
  if (at_ != tensor_bytes_) {
    return damaged("{} bytes of {} were applied before the end", at_, tensor_bytes_);
  }
  return values_frame_->finish();
}

}  // namespace stfs::sync
