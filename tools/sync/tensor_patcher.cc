// Reads pieces that stay in the processor's cache while they are decoded and hashed.
#include "tools/sync/tensor_patcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/sync/damage.h"

namespace stfs::sync {
namespace {

constexpr std::uint64_t kPatchBytes = 1 << 20;      // of one patch
constexpr std::uint64_t kDecodedBytes = 128 << 10;  // that is decoded at a time

tl::unexpected<Error> interrupted() {
  return fail(ErrorCode::System, EINTR, "interrupted: not changed");
}

}  // namespace

Result<TensorPatcher::Outcome> TensorPatcher::patch(const PublishedTensor& tensor, std::uint32_t position) {
  const ByteRange range = model_.file_range(position);
  tensor_ = &tensor;
  patches_.ranges.clear();
  checksum_.reset();
  bool has_changed = false;
  const auto make = [&]() -> Result<void> {
    if (!version_.is_full()) {
      checksum_.emplace(version_.checksum_format());
      auto started = decoder_.start(version_.encoding(), version_.diff(tensor), range.size_bytes);
      if (!started) return started;
    }
    for (std::uint64_t at = range.offset; at < range.end();) {
      // A block that lies in two patches would be written twice.
      const std::uint64_t end = std::min(round_down_to_block(at) + kPatchBytes, range.end());
      if (auto staged = stage(position, {at, end - at}, has_changed); !staged) return staged;
      at = end;
    }
    return version_.is_full() ? Result<void>{} : decoder_.finish();
  };
  auto made = make();
  if (!made && made.error().code != ErrorCode::InvalidArgument) return pass_on(std::move(made));
  const bool is_right = made && (version_.is_full() || is_same_checksum(checksum_->hex(), tensor.checksum));
  if (is_right) {
    if (!has_changed) return Outcome::Same;
    if (transaction_ == nullptr) return Outcome::Changed;
    auto kept = transaction_->of_shard(model_.place(position).shard).keep_patches(patches_);
    if (!kept) return pass_on(std::move(kept));
    return Outcome::Changed;
  }
  auto done = is_done(tensor, position);
  if (!done) return pass_on(std::move(done));
  if (*done) return Outcome::Same;
  if (!made) return tl::unexpected(std::move(made).error());
  return damaged(
      "the present bytes with the diff have the checksum {}, expected {}: the diff is of another "
      "base, or damaged",
      checksum_->hex(), tensor.checksum);
}

Result<void> TensorPatcher::stage(std::uint32_t position, ByteRange place, bool& has_changed) {
  before_.resize(static_cast<std::size_t>(place.size_bytes));
  after_.resize(before_.size());
  bool differs = false;
  const std::uint64_t begin = place.offset - model_.file_range(position).offset;
  if (auto got = model_.archive_of(position).read_through(before_, place.offset); !got) return got;
  if (!work_.advance(place.size_bytes)) return interrupted();
  for (std::uint64_t at = 0; at < place.size_bytes; at += kDecodedBytes) {
    const std::size_t size = static_cast<std::size_t>(std::min(kDecodedBytes, place.size_bytes - at));
    const auto old_bytes = std::span(before_).subspan(static_cast<std::size_t>(at), size);
    const auto new_bytes = std::span(after_).subspan(static_cast<std::size_t>(at), size);
    std::ranges::copy(old_bytes, new_bytes.begin());
    auto made = make_new(new_bytes, begin + at);
    if (!made) return pass_on(std::move(made));
    if (checksum_) checksum_->update(new_bytes);
    differs = differs || *made;
  }
  has_changed = has_changed || differs;
  if (!differs || transaction_ == nullptr) return {};
  return transaction_->of_shard(model_.place(position).shard).patch(place.offset, before_, after_, patches_);
}

Result<bool> TensorPatcher::make_new(std::span<std::byte> piece, std::uint64_t offset) {
  if (!version_.is_full()) return decoder_.apply(piece);
  const Shard& shard = version_.shards()[tensor_->shard];
  const std::vector<std::byte> old(piece.begin(), piece.end());
  if (auto read = shard.archive->read_through(piece, tensor_->file_range.offset + offset); !read) {
    return pass_on(std::move(read));
  }
  return std::memcmp(old.data(), piece.data(), piece.size()) != 0;
}

Result<bool> TensorPatcher::is_done(const PublishedTensor& tensor, std::uint32_t position) {
  if (version_.is_full()) return false;
  const ByteRange range = model_.file_range(position);
  ChecksumStream present(version_.checksum_format());
  before_.resize(static_cast<std::size_t>(std::min(kPatchBytes, range.size_bytes)));
  for (std::uint64_t at = 0; at < range.size_bytes; at += before_.size()) {
    const auto piece = std::span(before_).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(before_.size(), range.size_bytes - at)));
    if (auto got = model_.archive_of(position).read_through(piece, range.offset + at); !got) {
      return pass_on(std::move(got));
    }
    present.update(piece);
    if (!work_.goes_on()) return interrupted();
  }
  return is_same_checksum(present.hex(), tensor.checksum);
}

}  // namespace stfs::sync
