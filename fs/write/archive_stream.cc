#include "fs/write/archive_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stfs {

tl::unexpected<Error> ArchiveStream::refuse(std::string_view why) const {
  return fail(ErrorCode::WrongSize, EINVAL, fmt::format("not a checkpoint: {}", why));
}

bool ArchiveStream::may_skip_to(std::uint64_t offset) const {
  if (!header_ || offset < size_bytes_) return false;
  const std::uint64_t from = size_bytes_ - head_bytes_;
  const std::uint64_t to = offset - head_bytes_;
  return std::ranges::any_of(header_->fillers,
                             [&](ByteRange filler) { return filler.offset <= from && to <= filler.end(); });
}

Result<void> ArchiveStream::write(std::span<const std::byte> from, std::uint64_t offset) {
  if (may_skip_to(offset)) size_bytes_ = offset;
  if (offset != size_bytes_) {
    return refuse(fmt::format("byte {} comes after byte {}: write it from its beginning to its end", offset,
                              size_bytes_));
  }
  while (!from.empty() && !header_) {
    const auto taken = take_head(from);
    RETURN_IF_ERROR(taken);
    from = from.subspan(*taken);
    size_bytes_ += *taken;
  }
  if (from.empty()) return {};
  if (from.size() > end_bytes_ - size_bytes_)
    return refuse(fmt::format("its header gives {} bytes, and more have come", end_bytes_));
  RETURN_IF_ERROR(receiver_.take_data(from, size_bytes_ - head_bytes_));
  size_bytes_ += from.size();
  return {};
}

Result<std::size_t> ArchiveStream::take_head(std::span<const std::byte> from) {
  const std::uint64_t due = head_.size() < kHeaderLengthBytes ? kHeaderLengthBytes : head_bytes_;
  const std::size_t taken =
      static_cast<std::size_t>(std::min<std::uint64_t>(due - head_.size(), from.size()));
  head_.append(reinterpret_cast<const char*>(from.data()), taken);
  if (head_.size() < due) return taken;
  if (due == kHeaderLengthBytes && head_bytes_ == 0) {
    const auto length = header_length(std::as_bytes(std::span(head_)), ~std::uint64_t{0});
    RETURN_IF_ERROR(length);
    head_bytes_ = kHeaderLengthBytes + *length;
    if (receiver_.take_length) {
      RETURN_IF_ERROR(receiver_.take_length(head_bytes_));
    }
  }
  if (head_.size() < head_bytes_) return taken;
  RETURN_IF_ERROR(parse_head());
  return taken;
}

Result<void> ArchiveStream::parse_head() {
  auto header = parse_header(std::string_view(head_).substr(kHeaderLengthBytes), std::nullopt);
  RETURN_IF_ERROR(header);
  end_bytes_ = head_bytes_;
  const TensorIndex& tensors = header->tensors;
  if (tensors.size() > 0) end_bytes_ += tensors[tensors.size() - 1].data.end();
  for (const ByteRange filler : header->fillers)
    end_bytes_ = std::max(end_bytes_, head_bytes_ + filler.end());
  RETURN_IF_ERROR(receiver_.take_header(*header, head_));
  head_ = std::string();
  header_ = std::move(*header);
  return {};
}

Result<void> ArchiveStream::resize(std::uint64_t size_bytes) {
  if (size_bytes == size_bytes_) return {};
  if (size_bytes == 0) {
    forget();
    return {};
  }
  // safetensors announces the size before the first byte.
  if (size_bytes_ != 0) return refuse("its size can't be set after its first byte");
  announced_bytes_ = size_bytes;
  return {};
}

Result<void> ArchiveStream::check() const {
  if (!header_) return refuse(fmt::format("it ends after {} bytes, within its header", size_bytes_));
  if (announced_bytes_ && *announced_bytes_ != end_bytes_)
    return refuse(fmt::format("its size was set to {}, its header gives {}", *announced_bytes_, end_bytes_));
  if (size_bytes_ == end_bytes_) return {};
  return refuse(fmt::format("it ends after {} bytes, its header gives {}", size_bytes_, end_bytes_));
}

void ArchiveStream::forget() {
  header_.reset();
  head_ = std::string();
  size_bytes_ = head_bytes_ = end_bytes_ = 0;
  announced_bytes_.reset();
}

}  // namespace stfs
