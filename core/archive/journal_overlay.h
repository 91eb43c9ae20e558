// Blocks of journals that reads get instead of the archive's own.
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
  /// Whether a journal overrides the archive until recovery has applied it.
  [[nodiscard]] bool has_pending() const { return has_pending_; }
  /// Whether nothing overrides the archive, not even for the moment.
  [[nodiscard]] bool is_empty() const { return !has_pending_ && !is_applying_; }

  /// The size that an edit which waits for recovery gives the archive; nothing if there is none.
  [[nodiscard]] std::optional<std::uint64_t> size_bytes() const;

  /// The index that a pending journal gives the model; nothing if none replaces this one.
  /// @param name  of the index's file.
  [[nodiscard]] Result<std::optional<std::string>> new_index(std::string_view name,
                                                             std::string_view present) const;

  /// Overwrites `to` with the blocks that journals hold of the archive's range at `offset`.
  [[nodiscard]] Result<void> lay_over(std::span<std::byte> to, std::uint64_t offset) const;

  /// Replaces all pending journals. Later ones override earlier ones.
  void set_pending(std::vector<PendingJournal> journals);
  /// From now on, reads of these ranges come from the journal. Needs no memory after reserve(), also for a
  /// commit and another one beside it.
  void add(PendingJournal journal);
  void reserve();

  /// Ranges of the archive whose bytes are elsewhere for the moment.
  struct OnTheWay {
    const File* file = nullptr;  // a journal, or the archive itself; null: there are no ranges
    std::span<const JournalRange> ranges;
  };
  /// Reads of these ranges come from the journal, until another call replaces it. Needs no memory.
  /// @param instead_of  the journal whose blocks are no longer shown; null: none.
  void show_while_applied(OnTheWay blocks, const File* instead_of = nullptr);
  void end_applied(const File* journal) { show_while_applied({}, journal); }
  /// The same for tensors that an edit moves, beside which no other commit runs: replaces all that is shown.
  void show_moved(OnTheWay in_journal, OnTheWay in_archive);
  /// Reads the archive's range if all of its bytes are elsewhere for the moment: the archive may have been
  /// cut there. @return false: they are not, and nothing was read. A caller that then reads a moved tensor
  /// from the archive must hold the tensor's lock.
  [[nodiscard]] Result<bool> read_elsewhere(std::span<std::byte> to, std::uint64_t offset) const;

 private:
  /// Overwrites those bytes of the archive's range at `offset` that the file holds.
  static Result<void> read_over(std::span<std::byte> to, std::uint64_t offset, const File& file,
                                std::span<const JournalRange> ranges);
  /// Does so for all bytes that are elsewhere for the moment.
  [[nodiscard]] Result<void> read_on_the_way(std::span<std::byte> to, std::uint64_t offset) const
      REQUIRES_SHARED(lock_);
  void note_applying() REQUIRES(lock_);

  std::atomic<bool> has_pending_ = false;
  std::atomic<bool> is_applying_ = false;
  mutable ReaderWriterLock lock_;  // innermost, held by reads of journals
  std::vector<PendingJournal> pending_ GUARDED_BY(lock_);
  static constexpr std::size_t kMostApplied = 2;  // a commit, and another one beside it
  // Each has other blocks; they override pending_.
  std::array<OnTheWay, kMostApplied> on_the_way_ GUARDED_BY(lock_);
};

}  // namespace stfs
