// The file of one journal, from staging through commit to retirement.
//
// The states of a journal, and the calls that lead from one to the next:
//
// clang-format off
//     staging ----- seal() -----> sealed ----- publish() -----> committed ----- retire() -----> gone
//        |                           |                            |    |
//     (the object or the process ends: nothing is left)           |    +------- give_up() ----> given up
//        ^                                                        |    (or a crash: recovery applies it)
//        +--------------- seal() -------------- taken back <--- take_back()
// clang-format on
//
// The code checks each transition. A call in the wrong state is a bug of the caller: it changes nothing and
// fails with "internal error". A failed sync leaves the state as it is, but spoils the journal: seal() and
// publish() then fail with spoiled().
//
// With a lane journal, a small change stays in memory until seal() passes it to the lane journal. seal() is
// then the commit point, may not be repeated, and publish() only changes the state.
//
// Invariants:
//  1. The archive is not touched before the journal is committed.
//  2. A journal gets its final name only after all of its bytes are on stable storage.
//  3. The journal is committed when the directory that holds its name is on stable storage. Before that, the
//     caller holds the archive's locks on every block that the journal names.
//  4. While its owner lives, the owner holds an exclusive lock on the journal. If a journal under its final
//     name can be locked, its owner is dead.
//  5. The journal is retired only after the archive's bytes that it names are on stable storage. The locks on
//     these bytes are held until the journal is void on stable storage.
//     Releasing the locks as soon as the archive is written would lead to the same states. The next holder of
//     the locks lists the journals afterwards (find_obstacle()) and finds one of three:
//      a. The journal with a record. By invariant 4 some process holds its lock, and every commit to one of
//         its blocks waits. An owner that dies or gives up leaves the journal to recovery, which runs before
//         the next commit.
//      b. The journal, void. The archive was synced before. The finder syncs the void journal once more.
//      c. No journal. It was void on stable storage before its name was removed. With durability=process
//         nothing has to survive a power loss, but it was void too: a name that another user has moved away
//         and brings back promises nothing.
//     The locks put waiting writers in order and show which process blocks them. A commit that neither
//     finds the locks held nor waits for the journal is lost where both share a block (protocol_mutants.py).
//  6. Applying a journal again changes nothing.
//  7. After a failed sync of the archive the journal stays, and the archive is not written again.
//  8. On a file system without birth times, the archive's content under the journal's blocks is on stable
//     storage before the journal is committed: these old blocks prove that the journal was made for this
//     archive (journal_verdict.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_format.h"
#include "core/journal/lane_journal.h"
#include "core/journal/staging_buffer.h"
#include "core/storage/file.h"
#include "core/storage/writeback.h"

namespace stfs {

/// Several threads may stage several tensors at a time: any thread may call allocate(), write(), read() and
/// reserve(). All other calls are for one thread, while no thread stages.
class Journal {
 public:
  enum class Place : std::uint8_t {
    Disk,    // an unnamed file beside the archive
    Memory,  // in memory; a file once it is too large for a lane journal's lane
  };
  /// The states of the drawing. Not synchronized with threads that stage.
  enum class State : std::uint8_t { Staging, Sealed, Committed, Gone, TakenBack, GivenUp };
  [[nodiscard]] State state() const { return state_; }
  /// Makes a journal in the state "staging".
  /// @param archive  see create_journal_file(). Keep it open while the journal is staged and sealed.
  static Result<std::unique_ptr<Journal>> create(Storage& storage, const std::filesystem::path& archive_path,
                                                 const File& archive, Place place = Place::Disk);

  /// Allocates a new region of whole blocks and returns its offset. Nothing is written or reserved yet.
  std::uint64_t allocate(std::uint64_t size_bytes);
  /// Allocates a region that shares the archive's blocks instead of copying them. The region keeps its bytes
  /// when the archive's blocks change.
  /// @param blocks  must be whole blocks.
  /// @return nothing if the file system does not share blocks, or has no space or quota left for it.
  Result<std::optional<std::uint64_t>> share(File& archive, ByteRange blocks);
  /// Size of the head and all regions.
  [[nodiscard]] std::uint64_t size_bytes() const { return end_bytes_; }
  /// Writes staged bytes at an offset in a region. A journal in memory that grows too large for a lane moves
  /// to a file first.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  /// Reads bytes that were written or shared before.
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const;
  /// Preallocates disk space for a range of a region: ENOSPC, EDQUOT.
  Result<void> reserve(ByteRange range);
  /// The sealed journal's file, for reading.
  [[nodiscard]] File& file() const { return *file_; }
  [[nodiscard]] bool is_in_memory() const { return memory_ != nullptr; }
  [[nodiscard]] const JournalId& id() const { return id_; }

  /// Fills in the hashes of one range.
  using HashRange = std::function<Result<void>(JournalRange& range)>;
  using AroundSync = std::function<Result<void>(const std::function<Result<void>()>& sync)>;
  /// Writes and syncs the record and the head. May be repeated until publish(), but not after a failed sync:
  /// the kernel may then mark pages clean that never reached the disk, so seal() always fails from then on.
  /// @param hash  is called for each range just before it is written, so that not all hashes are in memory at
  ///              once. Without it the record must have its hashes.
  /// @param around_sync  calls the function that it gets, which syncs the file. The sync takes long, and uses
  ///                     only the file. Without around_sync, seal() calls that function.
  /// @param lane_journal  if ready, takes a journal that is still in memory. Then seal() is the commit point.
  Result<void> seal(JournalRecord record, Durability durability, const HashRange& hash = {},
                    LaneJournal* lane_journal = nullptr, const AroundSync& around_sync = {});
  /// The commit point. If the record names a group record, the group record's publish() is the commit point,
  /// and this call is a precondition. A failure spoils the journal and removes its name. If the name could
  /// not be removed either, the error's code is CommitUnknown.
  Result<void> publish(Durability durability);
  /// Withdraws a published journal whose group record was not published: makes the journal void and removes
  /// its name. The staged bytes stay, and the next seal() moves them to another file. Does nothing unless the
  /// state is "committed".
  void take_back(Durability durability);
  /// Makes the journal void and removes its name. A power loss, or a user who may write the directory, may
  /// bring the name back: recovery would then apply a journal that still had its record over newer commits.
  /// With durability=process nothing is synced.
  Result<void> retire(Durability durability);
  /// Takes the file of a retired journal. Closing the file frees its space, which takes time.
  [[nodiscard]] std::unique_ptr<File> take_file();

  /// The error that has spoiled the journal, if any.
  [[nodiscard]] const std::optional<Error>& spoiled() const { return spoiled_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Takes the path, for a caller that has finished with the journal. Needs no memory.
  [[nodiscard]] std::filesystem::path take_path() { return std::move(path_); }
  /// Releases the lock of a journal that could not be applied. The journal stays: any process with the right
  /// to do so may now recover it, and readers use the returned file until then. Null unless the state is
  /// "committed".
  [[nodiscard]] std::unique_ptr<File> give_up();

 private:
  Journal(Storage& storage, std::filesystem::path archive_path, const File& archive)
      : storage_(storage), archive_path_(std::move(archive_path)), archive_(archive) {}
  /// Fails if no call leads from the current state to `next`.
  [[nodiscard]] Result<void> check_step_to(State next) const;
  Result<void> move_to_disk();
  /// Copies the regions to a new file: a file that had a name can't be published again.
  Result<void> move_to_new_file();
  /// Makes the journal void and removes its name.
  Result<void> end(Durability durability);
  /// Writes the record behind the regions. Returns the head that describes it.
  Result<JournalHead> write_record(JournalRecord record, const HashRange& hash);

  Storage& storage_;
  const std::filesystem::path archive_path_;
  const File& archive_;
  std::filesystem::path path_;           // the final name
  mutable Mutex mutex_;                  // guards all other members that staging uses
  StagingBuffer* memory_ = nullptr;      // points to file_ while the journal is in memory
  LaneJournal* lane_journal_ = nullptr;  // the lane journal that the commit went through
  std::unique_ptr<File> file_;
  JournalId id_;
  FileNumbers own_;
  std::optional<Error> spoiled_;
  State state_ = State::Staging;
  std::uint64_t end_bytes_ = kBlockBytes;  // end of the regions
  Writeback writeback_;                    // must be destroyed before the file
};

}  // namespace stfs
