#include "tests/simulation/pending_change.h"

#include <algorithm>
#include <utility>

namespace stfs::test {

PendingChange::PendingChange(Target of, FileKind its_kind) : target(std::move(of)), kind(its_kind) {
  size_bytes = committed().size();
  bytes.resize(size_bytes);
  is_written.resize(size_bytes);
}

Buffer PendingChange::over(const Buffer& content) const {
  Buffer result = content;
  for (std::size_t at = 0; at < result.size(); ++at) {
    if (is_written[at]) result[at] = bytes[at];
  }
  result.resize(size_bytes);
  return result;
}

Content PendingChange::content() const {
  if (!is_dirty) return Content::Clean;
  return size_bytes == bytes.size() ? Content::Whole : Content::Cut;
}

void PendingChange::write(std::uint64_t offset, std::span<const std::byte> from) {
  if (offset > size_bytes) resize(offset);
  for (std::size_t at = 0; at < from.size(); ++at) {
    bytes[offset + at] = from[at];
    is_written[offset + at] = true;
  }
  size_bytes = std::max<std::uint64_t>(size_bytes, offset + from.size());
  is_dirty = true;
}

void PendingChange::resize(std::uint64_t to_bytes) {
  if (to_bytes == size_bytes) return;
  for (std::uint64_t at = std::min(to_bytes, size_bytes); at < bytes.size(); ++at) {
    // These bytes are zeros until they are written again.
    bytes[at] = std::byte{0};
    is_written[at] = true;
  }
  size_bytes = to_bytes;
  is_dirty = true;
}

void PendingChange::forget() {
  size_bytes = bytes.size();
  is_written.assign(bytes.size(), false);
  is_dirty = was_refused = has_unnamed = false;
  if (kind != FileKind::Grouped) spoiled = 0;
  writers.clear();
}

void PendingChange::fail() {
  forget();
  has_failed = true;
}

}  // namespace stfs::test
