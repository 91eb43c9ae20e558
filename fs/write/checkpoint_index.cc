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
    text_.resize(std::max(text_.size(), at + from.size()));
    std::memcpy(text_.data() + at, from.data(), from.size());
    is_committed_ = false;
    return {};
  });
}

Result<void> CheckpointIndex::resize(std::uint64_t size_bytes) {
  if (size_bytes > kMaxModelIndexBytes)
    return fail(ErrorCode::WrongSize, EFBIG, "an index has at most 256 MiB");
  return guard_memory([&]() -> Result<void> {
    text_.resize(static_cast<std::size_t>(size_bytes));
    return {};
  });
}

Result<void> CheckpointIndex::read(std::span<std::byte> to, std::uint64_t offset) const {
  std::memcpy(to.data(), text_.data() + offset, to.size());
  return {};
}

Result<void> CheckpointIndex::check() const {
  auto index = parse_model_index(text_);
  if (index) return {};
  return fail(ErrorCode::WrongSize, EINVAL, "not an index of shards: " + index.error().message);
}

}  // namespace stfs
