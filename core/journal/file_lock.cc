#include "core/journal/file_lock.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "core/journal/journal_format.h"
#include "core/storage/lock_holder.h"

namespace stfs {
namespace {

constexpr std::uint64_t kLockBase = std::uint64_t{1} << 62U;
constexpr ByteRange kHeaderByte = {kLockBase, 1};
constexpr ByteRange kAll = {kLockBase, kLockBase - 1};  // up to the largest offset of a lock
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{50};

/// Returns the lock ranges: ascending, rounded out to blocks, overlaps merged. The lock of block 0 leaves out
/// the header's byte: an exclusive lock on data in block 0 would otherwise exclude every other patch.
std::vector<ByteRange> lock_ranges(std::vector<ByteRange> ranges) {
  std::ranges::sort(ranges, {}, &ByteRange::offset);
  std::vector<ByteRange> merged;
  for (const ByteRange range : ranges) {
    const std::uint64_t begin = kLockBase + std::max<std::uint64_t>(round_down_to_block(range.offset), 1);
    const std::uint64_t end = kLockBase + round_up_to_block(range.end());
    if (!merged.empty() && begin <= merged.back().end()) {
      merged.back().size_bytes = std::max(merged.back().end(), end) - merged.back().offset;
    } else {
      merged.push_back({begin, end - begin});
    }
  }
  return merged;
}

}  // namespace

ArchiveLocks::ArchiveLocks(ArchiveLocks&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)), held_(std::move(other.held_)) {}

ArchiveLocks& ArchiveLocks::operator=(ArchiveLocks&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(held_, other.held_);
  return *this;
}

void ArchiveLocks::release() {
  if (file_ != nullptr) {
    for (const ByteRange range : held_) file_->unlock(range);
  }
  held_.clear();
  file_ = nullptr;
}

Result<ArchiveLocks> ArchiveLocks::for_patch(File& archive, const std::filesystem::path& path,
                                             std::vector<ByteRange> ranges,
                                             std::chrono::milliseconds patience,
                                             std::optional<std::chrono::milliseconds> has_waited) {
  return take(archive, path, LockKind::Shared, std::move(ranges), patience, has_waited);
}

Result<ArchiveLocks> ArchiveLocks::for_blocks(File& archive, const std::filesystem::path& path,
                                              std::vector<ByteRange> ranges,
                                              std::chrono::milliseconds patience,
                                              std::optional<std::chrono::milliseconds> has_waited) {
  return take(archive, path, std::nullopt, std::move(ranges), patience, has_waited);
}

Result<ArchiveLocks> ArchiveLocks::for_edit(File& archive, const std::filesystem::path& path,
                                            std::chrono::milliseconds patience,
                                            std::optional<std::chrono::milliseconds> has_waited) {
  return take(archive, path, LockKind::Exclusive, {}, patience, has_waited);
}

bool ArchiveLocks::is_edited_by_other(const File& archive) {
  const auto is_locked = archive.is_locked_by_other(kHeaderByte, LockKind::Shared);
  return is_locked && *is_locked;
}

bool ArchiveLocks::is_changed_by_other(const File& archive) {
  const auto is_locked = archive.is_locked_by_other(kAll, LockKind::Shared);
  return is_locked && *is_locked;
}

Result<ArchiveLocks> ArchiveLocks::take(File& archive, const std::filesystem::path& path,
                                        std::optional<LockKind> of_header, std::vector<ByteRange> ranges,
                                        std::chrono::milliseconds patience,
                                        std::optional<std::chrono::milliseconds> has_waited) {
  ArchiveLocks locks;
  locks.file_ = &archive;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const auto lock = [&](ByteRange range, LockKind kind) -> Result<void> {
    for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      auto conflict = archive.try_lock(range, kind);
      RETURN_IF_ERROR(conflict);
      if (!*conflict) {
        locks.held_.push_back(range);
        return {};
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        if (!has_waited) return fail(ErrorCode::Busy, EBUSY, path.string() + ": locked by another process");
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*has_waited + patience).count();
        return fail(
            ErrorCode::Busy, EBUSY,
            fmt::format("{}: {} holds a lock on bytes [{}, {}){}", path.string(),
                        holder_text(archive.lock_holder(range)), range.offset - kLockBase,
                        range.end() - kLockBase,
                        seconds > 0 ? fmt::format(" and has not released it for {} s", seconds) : ""));
      }
      std::this_thread::sleep_for(pause);
    }
  };
  if (of_header) {
    RETURN_IF_ERROR(lock(kHeaderByte, *of_header));
  }
  for (const ByteRange range : lock_ranges(std::move(ranges))) {
    RETURN_IF_ERROR(lock(range, LockKind::Exclusive));
  }
  return locks;
}

}  // namespace stfs
