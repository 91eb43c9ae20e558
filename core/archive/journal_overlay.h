// Gives reads the blocks of journals in place of the archive's own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/base/reader_writer_lock.h"
#include "core/journal/recovery.h"
#include "core/storage/file.h"

namespace stfs {

/// Any number of threads may read. One thread at a time changes it.
class JournalOverlay {
 public:
  /// Returns true if a journal overrides the archive until recovery applies it.
  [[nodiscard]] bool has_pending() const { return has_pending_; }
  /// Returns true if no pending journal, no commit and no edit overrides the archive.
  [[nodiscard]] bool is_empty() const { return !has_pending_ && !is_applying_; }

  /// The size that the archive gets by an edit that waits for recovery; nothing if there is no such edit.
  [[nodiscard]] std::optional<std::uint64_t> size_bytes() const;

  /// The index that a pending journal gives the model; nothing if no journal replaces the present one.
  /// @param name  the name of the index's file.
  [[nodiscard]] Result<std::optional<std::string>> new_index(std::string_view name,
                                                             std::string_view present) const;

  /// Overwrites `to` with the blocks that journals hold of the archive's range at `offset`.
  [[nodiscard]] Result<void> lay_over(std::span<std::byte> to, std::uint64_t offset) const;

  /// Replaces all pending journals. Later ones override earlier ones.
  void set_pending(std::vector<PendingJournal> journals);
  /// From now on, reads of these ranges come from the journal. After reserve() it allocates no memory, even
  /// for two commits that run together.
  void add(PendingJournal journal);
  void reserve();

  /// Ranges of the archive whose bytes are elsewhere while a commit or an edit is applied.
  struct OnTheWay {
    const File* file = nullptr;  // a journal, or the archive itself; null: there are no ranges
    std::span<const JournalRange> ranges;
  };
  /// Makes reads of these ranges come from the journal, until another call replaces it. Needs no memory.
  /// @param instead_of  the journal whose ranges are replaced; null: none.
  void show_while_applied(OnTheWay blocks, const File* instead_of = nullptr);
  void end_applied(const File* journal) { show_while_applied({}, journal); }
  /// Does the same for tensors that an edit moves, and replaces all ranges of earlier calls. No other commit
  /// runs beside an edit.
  void show_moved(OnTheWay in_journal, OnTheWay in_archive);
  /// Reads the archive's range if all of its bytes are elsewhere (OnTheWay): the archive may have been cut
  /// there. A caller that then reads a moved tensor from the archive must hold the tensor's lock.
  /// @return false: some bytes are not elsewhere, and nothing was read.
  [[nodiscard]] Result<bool> read_elsewhere(std::span<std::byte> to, std::uint64_t offset) const;

 private:
  /// Overwrites the bytes of `to` that the file has for the archive's range at `offset`.
  static Result<void> read_over(std::span<std::byte> to, std::uint64_t offset, const File& file,
                                std::span<const JournalRange> ranges);
  /// Does so for all ranges in `on_the_way_`.
  [[nodiscard]] Result<void> read_on_the_way(std::span<std::byte> to, std::uint64_t offset) const
      REQUIRES_SHARED(lock_);
  void note_applying() REQUIRES(lock_);

  std::atomic<bool> has_pending_ = false;
  std::atomic<bool> is_applying_ = false;
  mutable ReaderWriterLock lock_;  // innermost, held by reads of journals
  std::vector<PendingJournal> pending_ GUARDED_BY(lock_);
  static constexpr std::size_t kMostApplied = 2;  // two commits that run together
  // No two entries have a common block. They override pending_.
  std::array<OnTheWay, kMostApplied> on_the_way_ GUARDED_BY(lock_);
};

}  // namespace stfs
