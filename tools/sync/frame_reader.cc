// Runs the streaming interface of zstd, which checks the frame and its content size.
#include "tools/sync/frame_reader.h"

#include <zstd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "tools/sync/damage.h"

namespace stfs::sync {
namespace {

constexpr std::uint64_t kFetchedBytes = 128 * 1024;
constexpr int kMostWindowLog = 23;
constexpr std::size_t kDroppedBytes = 64 * 1024;
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

void FrameReader::Free::operator()(ZSTD_DCtx* context) const {
  ZSTD_freeDCtx(context);
}

FrameReader::FrameReader() : context_(ZSTD_createDCtx()) {
  if (!context_) throw std::bad_alloc();
  ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kMostWindowLog);
}

Result<void> FrameReader::start(CompressedDiff diff) {
  ZSTD_DCtx_reset(context_.get(), ZSTD_reset_session_only);
  diff_ = std::move(diff);
  unused_ = {};
  fetched_bytes_ = 0;
  expanded_bytes_ = 0;
  content_bytes_.reset();
  is_ended_ = false;
  if (diff_.size_bytes == 0) return damaged("the diff is empty, expected a zstd frame");
  if (auto ok = refill(); !ok) return ok;
  if (!has_magic_number(unused_)) return damaged("the diff is no zstd frame");
  const unsigned long long content = ZSTD_getFrameContentSize(unused_.data(), unused_.size());
  if (content == ZSTD_CONTENTSIZE_ERROR) return damaged("the header of the zstd frame is damaged");
  if (content != ZSTD_CONTENTSIZE_UNKNOWN) content_bytes_ = content;
  return {};
}

Result<void> FrameReader::refill() {
  const std::uint64_t size_bytes = std::min(kFetchedBytes, diff_.size_bytes - fetched_bytes_);
  if (!unused_.empty() || size_bytes == 0) return {};
  fetched_.resize(kFetchedBytes);
  const auto to = std::span(fetched_).first(static_cast<std::size_t>(size_bytes));
  if (auto ok = diff_.read(fetched_bytes_, to); !ok) return ok;
  unused_ = to;
  fetched_bytes_ += size_bytes;
  return {};
}

Result<bool> FrameReader::step(std::span<std::byte> to, std::size_t& done) {
  if (auto ok = refill(); !ok) return pass_on(std::move(ok));
  ZSTD_inBuffer in{unused_.data(), unused_.size(), 0};
  ZSTD_outBuffer out{to.data(), to.size(), done};
  const std::size_t left = ZSTD_decompressStream(context_.get(), &out, &in);
  if (ZSTD_isError(left) != 0) return damaged("the zstd frame: {}", ZSTD_getErrorName(left));
  const bool has_moved = in.pos > 0 || out.pos > done;
  unused_ = unused_.subspan(in.pos);
  expanded_bytes_ += out.pos - done;
  done = out.pos;
  is_ended_ = left == 0;
  return has_moved;
}

Result<std::size_t> FrameReader::read(std::span<std::byte> to) {
  std::size_t done = 0;
  while (done < to.size() && !is_ended_) {
    const auto has_moved = step(to, done);
    if (!has_moved) return tl::unexpected(has_moved.error());
    if (!*has_moved && !is_ended_) {
      return damaged("the zstd frame is cut short: it has only {} bytes", diff_.size_bytes);
    }
  }
  return done;
}

Result<std::uint64_t> FrameReader::skip(std::uint64_t size_bytes) {
  dropped_.resize(kDroppedBytes);
  std::uint64_t done = 0;
  while (done < size_bytes) {
    const auto part = std::span(dropped_).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(dropped_.size(), size_bytes - done)));
    const auto read_bytes = read(part);
    if (!read_bytes) return tl::unexpected(read_bytes.error());
    done += *read_bytes;
    if (*read_bytes < part.size()) break;
  }
  return done;
}

Result<void> FrameReader::finish() {
  std::byte more{};
  const auto size_bytes = read({&more, 1});
  if (!size_bytes) return tl::unexpected(size_bytes.error());
  if (*size_bytes > 0) {
    return damaged("the diff expands to more than the {} bytes that are due", expanded_bytes_ - 1);
  }
  const std::uint64_t behind_bytes = unused_.size() + diff_.size_bytes - fetched_bytes_;
  if (behind_bytes == 0) return {};
  if (auto ok = refill(); !ok) return ok;
  return damaged("{} bytes follow the zstd frame{}", behind_bytes,
                 has_magic_number(unused_) ? ", a second frame" : "");
}

}  // namespace stfs::sync
