#include "fs/write/checkpoint_index.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/model/model_index.h"

namespace stfs {

Result<void> CheckpointIndex::write(std::span<const std::byte> from, std::uint64_t offset) {
  if (offset > kMaxModelIndexBytes || from.size() > kMaxModelIndexBytes - offset)
    return fail(ErrorCode::WrongSize, EFBIG, "an index has at most 256 MiB");
  const auto at = static_cast<std::size_t>(offset);
  return guard_memory([&]() -> Result<void> {
    RETURN_IF_ERROR(set_size(std::max(text_.size(), at + from.size())));
    std::memcpy(text_.data() + at, from.data(), from.size());
    is_committed_ = false;
    return {};
  });
}

Result<void> CheckpointIndex::resize(std::uint64_t size_bytes) {
  if (size_bytes > kMaxModelIndexBytes)
    return fail(ErrorCode::WrongSize, EFBIG, "an index has at most 256 MiB");
  return guard_memory([&] { return set_size(static_cast<std::size_t>(size_bytes)); });
}

Result<void> CheckpointIndex::set_size(std::size_t size_bytes) {
  constexpr std::size_t kStepBytes = 1 << 20;
  if (size_bytes == 0) {
    drop();
    return {};
  }
  while (counted_bytes_ < size_bytes) {
    auto share = bytes_.take(user_, kStepBytes);
    RETURN_IF_ERROR(share);
    shares_.push_back(std::move(*share));
    counted_bytes_ += kStepBytes;
  }
  text_.resize(size_bytes);
  return {};
}

void CheckpointIndex::drop() {
  text_ = std::string();
  shares_.clear();
  counted_bytes_ = 0;
}

Result<void> CheckpointIndex::read(std::span<std::byte> to, std::uint64_t offset,
                                   const Staging::ReadBase& /*read_base*/) const {
  std::memcpy(to.data(), text_.data() + offset, to.size());
  return {};
}

Result<void> CheckpointIndex::check() const {
  auto index = parse_model_index(text_);
  if (index) return {};
  return fail(ErrorCode::WrongSize, EINVAL, "not an index of shards: " + index.error().message);
}

}  // namespace stfs
