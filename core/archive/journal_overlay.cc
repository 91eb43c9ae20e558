#include "core/archive/journal_overlay.h"

#include <algorithm>
#include <utility>

#include "core/base/byte_range.h"
#include "core/base/mutex.h"
#include "core/base/xxh3.h"
#include "core/journal/byte_patch.h"

namespace stfs {

std::optional<std::uint64_t> JournalOverlay::size_bytes() const {
  if (!has_pending_) return std::nullopt;
  const SharedLock lock(lock_);
  std::optional<std::uint64_t> size_bytes;
  for (const PendingJournal& journal : pending_) {
    if (journal.after) size_bytes = journal.after->size_bytes;
  }
  return size_bytes;
}

Result<std::optional<std::string>> JournalOverlay::new_index(std::string_view name,
                                                             std::string_view present) const {
  std::optional<std::string> none;
  if (!has_pending_) return none;
  const std::uint64_t hash = XXH3_64bits(present.data(), present.size());
  const SharedLock lock(lock_);
  for (const PendingJournal& journal : pending_) {
    if (!journal.index || journal.index->name != name || journal.index->old_hash != hash) continue;
    auto text = read_text(*journal.file, journal.index->in_journal);
    RETURN_IF_ERROR(text);
    return std::optional(std::move(*text));
  }
  return none;
}

Result<void> JournalOverlay::read_over(std::span<std::byte> to, std::uint64_t offset, const File& file,
                                       std::span<const JournalRange> ranges) {
  const ByteRange wanted{offset, to.size()};
  std::vector<std::byte> region;
  for (const JournalRange& range : ranges) {
    const ByteRange part = range.archive.intersection(wanted);
    if (part.empty()) continue;
    const auto place =
        to.subspan(static_cast<std::size_t>(part.offset - offset), static_cast<std::size_t>(part.size_bytes));
    if (range.is_patch()) {
      auto patch = read_patch(file, range, region);
      RETURN_IF_ERROR(patch);
      patch->apply(place, part.offset);
      continue;
    }
    const std::uint64_t from = range.journal_offset + (part.offset - range.archive.offset);
    RETURN_IF_ERROR(file.read(place, from));
  }
  return {};
}

Result<void> JournalOverlay::read_on_the_way(std::span<std::byte> to, std::uint64_t offset) const {
  for (const OnTheWay& shown : on_the_way_) {
    if (shown.file == nullptr) continue;
    RETURN_IF_ERROR(read_over(to, offset, *shown.file, shown.ranges));
  }
  return {};
}

Result<void> JournalOverlay::lay_over(std::span<std::byte> to, std::uint64_t offset) const {
  if (is_empty()) return {};
  const SharedLock lock(lock_);
  for (const PendingJournal& journal : pending_) {
    RETURN_IF_ERROR(read_over(to, offset, *journal.file, journal.ranges));
  }
  return read_on_the_way(to, offset);
}

Result<bool> JournalOverlay::read_elsewhere(std::span<std::byte> to, std::uint64_t offset) const {
  if (!is_applying_) return false;
  std::uint64_t found_bytes = 0;
  const SharedLock lock(lock_);
  for (const OnTheWay& shown : on_the_way_) {
    for (const JournalRange& one : shown.ranges)
      found_bytes += one.is_patch() ? 0 : one.archive.intersection({offset, to.size()}).size_bytes;
  }
  if (found_bytes != to.size()) return false;
  auto read = read_on_the_way(to, offset);
  return read ? Result<bool>(true) : pass_on(std::move(read));
}

void JournalOverlay::set_pending(std::vector<PendingJournal> journals) {
  const MutexLock lock(lock_);
  pending_ = std::move(journals);
  has_pending_ = !pending_.empty();
}

void JournalOverlay::reserve() {
  const MutexLock lock(lock_);
  pending_.reserve(pending_.size() + kMostApplied);
}

void JournalOverlay::add(PendingJournal journal) {
  const MutexLock lock(lock_);
  pending_.push_back(std::move(journal));
  has_pending_ = true;
}

void JournalOverlay::show_while_applied(OnTheWay blocks, const File* instead_of) {
  const MutexLock lock(lock_);
  const auto place = std::ranges::find(on_the_way_, instead_of, &OnTheWay::file);
  if (place != on_the_way_.end()) *place = blocks;
  note_applying();
}

void JournalOverlay::show_moved(OnTheWay in_journal, OnTheWay in_archive) {
  const MutexLock lock(lock_);
  on_the_way_ = {in_journal, in_archive};
  note_applying();
}

void JournalOverlay::note_applying() {
  is_applying_ =
      std::ranges::any_of(on_the_way_, [](const OnTheWay& shown) { return shown.file != nullptr; });
}

}  // namespace stfs
