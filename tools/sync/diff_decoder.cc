// xor is applied straight from the decompressed piece; overwrite in batches of positions and values.
#include "tools/sync/diff_decoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "tools/sync/damage.h"

namespace stfs::sync {
namespace {

// Fits the second cache of any processor, together with the caller's bytes.
constexpr std::size_t kPieceBytes = 128 * 1024;
/// Positions of a batch. A diff of one batch is read once; a larger one has a reader for its values.
constexpr std::uint64_t kBatch = 128 * 1024;
constexpr std::size_t kCountBytes = 4;
constexpr std::size_t kPositionBytes = 4;

static_assert(std::endian::native == std::endian::little, "positions are read as they lie in the diff");

}  // namespace

Result<void> DiffDecoder::start(DiffEncoding encoding, CompressedDiff diff, std::uint64_t tensor_bytes) {
  encoding_ = encoding;
  tensor_bytes_ = tensor_bytes;
  at_ = 0;
  due_bytes_ = tensor_bytes;
  unapplied_ = {};
  expanded_bytes_ = 0;
  has_values_reader_ = false;
  positions_.clear();
  values_.clear();
  in_batch_ = 0;
  left_ = 0;
  least_position_ = 0;
  if (auto ok = reader_.start(diff); !ok) return ok;
  if (encoding == DiffEncoding::Overwrite) return start_overwrite(diff);
  if (const auto content = reader_.content_bytes(); content.value_or(tensor_bytes) != tensor_bytes) {
    return damaged("the diff expands to {} bytes, the tensor has {}", *content, tensor_bytes);
  }
  return {};
}

Result<void> DiffDecoder::start_overwrite(const CompressedDiff& diff) {
  due_bytes_ = kCountBytes;
  std::uint32_t count = 0;
  if (auto ok = read_exactly(reader_, std::as_writable_bytes(std::span(&count, 1))); !ok) return ok;
  if (count > tensor_bytes_) {
    return damaged("the diff changes {} bytes, the tensor has {}", count, tensor_bytes_);
  }
  due_bytes_ = overwrite_size_bytes(count);
  if (const auto content = reader_.content_bytes(); content.value_or(due_bytes_) != due_bytes_) {
    return damaged("the diff expands to {} bytes, but {} changes need {}", *content, count, due_bytes_);
  }
  left_ = count;
  has_values_reader_ = count > kBatch;
  if (!has_values_reader_) return {};
  if (auto ok = values_reader_.start(diff); !ok) return ok;
  const std::uint64_t before_bytes = kCountBytes + std::uint64_t{kPositionBytes} * count;
  const auto skipped_bytes = values_reader_.skip(before_bytes);
  if (!skipped_bytes) return tl::unexpected(skipped_bytes.error());
  if (*skipped_bytes == before_bytes) return {};
  return damaged("the diff expands to {} bytes, but {} changes need {}", *skipped_bytes, count, due_bytes_);
}

Result<void> DiffDecoder::read_exactly(FrameReader& reader, std::span<std::byte> to) {
  const auto size_bytes = reader.read(to);
  if (!size_bytes) return tl::unexpected(size_bytes.error());
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
    if (unapplied_.empty()) {
      piece_.resize(kPieceBytes);
      const auto piece = std::span(piece_).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, tensor_bytes_ - expanded_bytes_)));
      if (auto ok = read_exactly(reader_, piece); !ok) return pass_on(std::move(ok));
      expanded_bytes_ += piece.size();
      unapplied_ = piece;
    }
    const std::size_t size_bytes = std::min(bytes.size(), unapplied_.size());
    has_changed |= xor_into(bytes.first(size_bytes), unapplied_.first(size_bytes));
    bytes = bytes.subspan(size_bytes);
    unapplied_ = unapplied_.subspan(size_bytes);
  }
  return has_changed;
}

Result<bool> DiffDecoder::apply_overwrite(std::span<std::byte> bytes) {
  const std::uint64_t end = at_ + bytes.size();
  bool has_changed = false;
  for (;;) {
    if (in_batch_ == positions_.size()) {
      if (left_ == 0) return has_changed;
      if (auto ok = next_batch(); !ok) return pass_on(std::move(ok));
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
  if (auto ok = read_exactly(reader_, std::as_writable_bytes(std::span(positions_))); !ok) return ok;
  if (auto ok = check_batch(); !ok) return ok;
  return read_exactly(has_values_reader_ ? values_reader_ : reader_, values_);
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
  auto ended = has_values_reader_ ? values_reader_.finish() : reader_.finish();
  if (ended) return {};
  return tl::unexpected(std::move(ended).error());
}

}  // namespace stfs::sync
