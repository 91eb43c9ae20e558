// Pieces stay in the processor's second-level cache from their reading to their compression.
#include "tools/sync/diff_encoder.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace stfs::sync {
namespace {

constexpr std::size_t kTensorPieceBytes = 128 * 1024;
constexpr std::size_t kFramePieceBytes = 256 * 1024;
constexpr int kLevel = 1;
/// The number of changes that are kept in memory. A diff with more changes is written in passes.
constexpr std::uint64_t kMostCollected = 128 * 1024;

static_assert(std::endian::native == std::endian::little, "positions are written as they lie in memory");

tl::unexpected<Error> changed_meanwhile() {
  return fail(ErrorCode::ArchiveChanged, ESTALE, "the tensor has changed during the command");
}

}  // namespace

/// Writes one zstd frame after another.
class DiffEncoder::Frame {
 public:
  Frame() : context_(ZSTD_createCCtx()), out_(kFramePieceBytes) {
    if (context_ == nullptr) throw std::bad_alloc();
    ZSTD_CCtx_setParameter(context_, ZSTD_c_compressionLevel, kLevel);
  }
  ~Frame() { ZSTD_freeCCtx(context_); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  /// @param content_bytes  exactly the number of bytes that append() will get.
  void start(std::uint64_t content_bytes, const Sink& sink) {
    ZSTD_CCtx_reset(context_, ZSTD_reset_session_only);
    ZSTD_CCtx_setPledgedSrcSize(context_, content_bytes);
    left_bytes_ = content_bytes;
    size_bytes_ = 0;
    sink_ = &sink;
    filled_ = 0;
  }

  /// Appends content. The frame ends with the last pledged byte.
  Result<void> append(std::span<const std::byte> content) {
    if (content.size() > left_bytes_) return changed_meanwhile();
    left_bytes_ -= content.size();
    const ZSTD_EndDirective directive = left_bytes_ == 0 ? ZSTD_e_end : ZSTD_e_continue;
    ZSTD_inBuffer in{content.data(), content.size(), 0};
    for (;;) {
      ZSTD_outBuffer out{out_.data(), out_.size(), filled_};
      const std::size_t left = ZSTD_compressStream2(context_, &out, &in, directive);
      if (ZSTD_isError(left) != 0) {
        return fail(ErrorCode::System, ENOMEM, fmt::format("zstd: {}", ZSTD_getErrorName(left)));
      }
      filled_ = out.pos;
      const bool is_done = directive == ZSTD_e_end ? left == 0 : in.pos == in.size;
      const bool is_ended = is_done && directive == ZSTD_e_end;
      if (is_ended || filled_ == out_.size()) {
        RETURN_IF_ERROR(flush());
      }
      if (is_done) return {};
    }
  }

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  Result<void> flush() {
    size_bytes_ += filled_;
    return (*sink_)(std::span(out_).first(std::exchange(filled_, 0)));
  }

  ZSTD_CCtx* context_;
  std::vector<std::byte> out_;
  std::size_t filled_ = 0;
  std::uint64_t left_bytes_ = 0;  // of the content
  std::uint64_t size_bytes_ = 0;  // of the frame
  const Sink* sink_ = nullptr;
};

DiffEncoder::DiffEncoder(DiffEncoding encoding, ChecksumFormat checksum_format)
    : encoding_(encoding),
      checksum_format_(checksum_format),
      frame_(std::make_unique<Frame>()),
      before_buffer_(kTensorPieceBytes),
      after_buffer_(kTensorPieceBytes) {}
DiffEncoder::~DiffEncoder() = default;

Result<EncodedDiff> DiffEncoder::encode(const TensorChange& change, const Sink& sink, Work& work) {
  counted_bytes_ = 0;
  if (encoding_ == DiffEncoding::Xor) return encode_xor(change, sink, work);
  if (change.size_bytes > kMostOverwriteBytes) {
    return fail(ErrorCode::InvalidArgument, EFBIG,
                fmt::format("has {} bytes, and an overwrite diff reaches {}: use xor", change.size_bytes,
                            kMostOverwriteBytes));
  }
  return encode_overwrite(change, sink, work);
}

template <class Take>
Result<void> DiffEncoder::for_each_piece(const TensorChange& change, const Take& take) {
  for (std::uint64_t offset = 0; offset < change.size_bytes; offset += kTensorPieceBytes) {
    const auto size_bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(kTensorPieceBytes, change.size_bytes - offset));
    before_ = std::span(before_buffer_).first(size_bytes);
    after_ = std::span(after_buffer_).first(size_bytes);
    RETURN_IF_ERROR(change.before(offset, before_));
    RETURN_IF_ERROR(change.after(offset, after_));
    RETURN_IF_ERROR(take(offset));
  }
  return {};
}

Result<void> DiffEncoder::count_piece(Work& work) {
  counted_bytes_ += after_.size();
  if (work.advance(after_.size())) return {};
  return fail_system(EINTR, "the diff", "write");
}

Result<EncodedDiff> DiffEncoder::encode_xor(const TensorChange& change, const Sink& sink, Work& work) {
  ChecksumStream checksum(checksum_format_);
  bool is_changed = false;
  auto read = for_each_piece(change, [&](std::uint64_t offset) -> Result<void> {
    checksum.update(after_);
    const bool differs = std::memcmp(before_.data(), after_.data(), after_.size()) != 0;
    xor_into(before_, after_);
    if (differs && !is_changed) {
      is_changed = true;
      frame_->start(change.size_bytes, sink);
      // The frame begins with the equal pieces before this one. All pieces but the last have this size.
      const std::vector<std::byte> zeros(offset == 0 ? 0 : kTensorPieceBytes);
      for (std::uint64_t done = 0; done < offset; done += zeros.size()) {
        RETURN_IF_ERROR(frame_->append(zeros));
      }
    }
    RETURN_IF_ERROR(count_piece(work));
    return is_changed ? frame_->append(before_) : Result<void>();
  });
  RETURN_IF_ERROR(read);
  return EncodedDiff{is_changed, is_changed ? frame_->size_bytes() : 0, checksum.hex()};
}

Result<EncodedDiff> DiffEncoder::encode_overwrite(const TensorChange& change, const Sink& sink, Work& work) {
  ChecksumStream checksum(checksum_format_);
  std::uint64_t count = 0;
  positions_.clear();
  values_.clear();
  auto read = for_each_piece(change, [&](std::uint64_t offset) -> Result<void> {
    checksum.update(after_);
    if (count > kMostCollected) {  // they are not used
      positions_.clear();
      values_.clear();
    }
    count += collect(offset);
    return count_piece(work);
  });
  RETURN_IF_ERROR(read);
  if (count == 0) return EncodedDiff{false, 0, checksum.hex()};
  if (count >= kMostOverwriteBytes) {
    return fail(ErrorCode::InvalidArgument, EFBIG, "all of its 4 GiB have changed: use xor");
  }

  frame_->start(overwrite_size_bytes(count), sink);
  const auto count_field = static_cast<std::uint32_t>(count);
  auto written = frame_->append(std::as_bytes(std::span(&count_field, 1)));
  if (written && count <= kMostCollected) {
    written = frame_->append(std::as_bytes(std::span(positions_)));
    if (written) written = frame_->append(values_);
  } else if (written) {
    written = write_in_passes(change, count);
  }
  RETURN_IF_ERROR(written);
  return EncodedDiff{true, frame_->size_bytes(), checksum.hex()};
}

std::size_t DiffEncoder::collect(std::uint64_t offset) {
  constexpr std::size_t kWordBytes = 8;
  const std::size_t found_before = positions_.size();
  const std::byte* before = before_.data();
  const std::byte* after = after_.data();
  const auto collect_byte = [&](std::size_t at) {
    if (before[at] == after[at]) return;
    positions_.push_back(static_cast<std::uint32_t>(offset + at));
    values_.push_back(after[at]);
  };
  std::size_t at = 0;
  for (; at + kWordBytes <= after_.size(); at += kWordBytes) {
    if (std::memcmp(before + at, after + at, kWordBytes) == 0) continue;
    for (std::size_t byte = at; byte < at + kWordBytes; ++byte) collect_byte(byte);
  }
  for (; at < after_.size(); ++at) collect_byte(at);
  return positions_.size() - found_before;
}

Result<void> DiffEncoder::write_in_passes(const TensorChange& change, std::uint64_t count) {
  for (const bool writes_positions : {true, false}) {
    std::uint64_t left = count;
    auto read = for_each_piece(change, [&](std::uint64_t offset) -> Result<void> {
      positions_.clear();
      values_.clear();
      const std::size_t found = collect(offset);
      if (found > left) return changed_meanwhile();
      left -= found;
      if (found == 0) return {};
      return frame_->append(writes_positions ? std::as_bytes(std::span(positions_)) : values_);
    });
    RETURN_IF_ERROR(read);
    if (left != 0) return changed_meanwhile();
  }
  return {};
}

}  // namespace stfs::sync
