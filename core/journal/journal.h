// One journal's file, on its way from staging to commit to retirement.
//
// The states of a journal, and what leads from one to the next:
//
//     staging ----- seal() -----> sealed ----- publish() -----> committed ----- retire() -----> gone
//        |                           |                              |
//     (dies, or the process does: nothing is left)          (a crash: recovery applies it)
//
// A small one of a writer who keeps a standing journal stays in memory until seal() hands it over, which is
// its commit point then.
//
// Invariants:
//  1. The archive is not touched before the journal is committed.
//  2. A journal has its final name only after all of its bytes are on stable storage.
//  3. It is committed when the directory that holds its name is on stable storage, and not before the
//     caller has the archive's locks on every block that it names.
//  4. While its owner lives, the owner holds an exclusive lock on the journal; so a journal under its
//     final name that can be locked belongs to a dead owner.
//  5. It is retired only after the archive's bytes that it names are on stable storage, and the locks on them
//     are held until it is void there.
//     Locks that were given up as soon as the archive is written would leave the same states. Who takes them
//     next lists the journals afterwards (find_obstacle()) and finds one of three:
//      a. The journal, with a record. By 4 somebody holds it, and whoever wants one of its blocks waits. An
//         owner who dies or gives up leaves it to recovery, which comes before the next commit.
//      b. The journal, void. The archive's sync was before that. Whoever finds it syncs the void once more.
//      c. No journal. It was void on stable storage before its name went; with durability=process nothing
//         has to be there after a loss of power.
//     The locks put those in order who wait, and tell who is in the way. A commit that neither finds the
//     locks held nor waits for the journal is lost where it shares a block with it (mutant_table.py).
//  6. Applying it once more changes nothing.
//  7. After a failed sync of the archive it stays, and the archive is not written again.
//  8. Where there are no birth times, what lies under its blocks is on stable storage before it is committed:
//     its right to the archive shows by the old blocks (journal_verdict.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_format.h"
#include "core/journal/memory_file.h"
#include "core/journal/standing_journal.h"
#include "core/storage/file.h"
#include "core/storage/writeback.h"

namespace stfs {

/// The staging of several tensors may go on in several threads: allocate(), write(), read() and reserve() may
/// be called by any. All else is for one thread, while nobody stages.
class Journal {
 public:
  enum class Place : std::uint8_t {
    Disk,    // an unnamed file beside the archive
    Memory,  // as long as it fits into a standing journal's lane; then a file as well
  };
  /// A journal in staging.
  static Result<std::unique_ptr<Journal>> create(Storage& storage, const std::filesystem::path& archive_path,
                                                 Place place = Place::Disk);

  /// A new region of whole blocks; returns where it starts. Nothing is written or reserved yet.
  std::uint64_t allocate(std::uint64_t size_bytes);
  /// The same, with the archive's blocks in it, shared and not copied: they stay as they are when the
  /// archive's change.
  /// @param blocks  whole ones.
  /// @return nothing where the file system does not share blocks, or has no room for what that takes.
  Result<std::optional<std::uint64_t>> share(File& archive, ByteRange blocks);
  /// Of head and regions.
  [[nodiscard]] std::uint64_t size_bytes() const { return end_bytes_; }
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  /// What was written.
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const;
  Result<void> reserve(ByteRange range);
  /// Once it is sealed, for reading.
  [[nodiscard]] File& file() const { return *file_; }
  [[nodiscard]] bool is_in_memory() const { return memory_ != nullptr; }
  [[nodiscard]] const JournalId& id() const { return id_; }

  /// Fills in a range's hashes.
  using HashRange = std::function<Result<void>(JournalRange& range)>;
  /// Writes record and head, syncs them. May be repeated until publish(), but not after a failed sync: what
  /// the kernel calls clean then may never have reached the disk, so the journal is spoiled for good.
  /// @param hash  called for each range when its turn comes, so that not all hashes are in memory at once;
  ///              without it the record has them.
  /// @param standing  takes what is still in memory, where it is ready: then this is the commit point.
  Result<void> seal(JournalRecord record, Durability durability, const HashRange& hash = {},
                    StandingJournal* standing = nullptr);
  /// The commit point; where the record names a coordinator, only what that needs. After a failure the
  /// journal is spoiled and its name gone; where even that failed, the error's code is CommitUnknown.
  Result<void> publish(Durability durability);
  /// What was published waits for a coordinator that does not come: makes it void and removes its name. The
  /// staged bytes stay as they are, and the next seal() gives them another file.
  void take_back(Durability durability);
  /// Makes it void on stable storage and removes its name: one that came back with its record after a loss of
  /// power would be applied over what was committed since.
  Result<void> retire(Durability durability);
  /// The file of a retired one: closing it gives its space back, which takes its time.
  [[nodiscard]] std::unique_ptr<File> take_file();

  /// The error that has spoiled it, if any.
  [[nodiscard]] const std::optional<Error>& spoiled() const { return spoiled_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// For who has done with the journal; needs no memory.
  [[nodiscard]] std::filesystem::path take_path() { return std::move(path_); }
  /// For a journal that stays because it could not be applied: whoever can may recover it now, and reads go
  /// through the file until then.
  [[nodiscard]] std::unique_ptr<File> give_up();

 private:
  Journal(Storage& storage, std::filesystem::path archive_path)
      : storage_(storage), archive_path_(std::move(archive_path)) {}
  Result<void> move_to_disk();
  /// A file that had a name can't have it again: copies the regions to a new one.
  Result<void> move_to_new_file();
  /// Behind the regions; what a head tells of it.
  Result<JournalHead> write_record(JournalRecord record, const HashRange& hash);

  Storage& storage_;
  const std::filesystem::path archive_path_;
  std::filesystem::path path_;           // the final name
  mutable std::mutex mutex_;             // guards what staging uses of the rest
  MemoryFile* memory_ = nullptr;         // file_, while it is in memory
  StandingJournal* standing_ = nullptr;  // that the commit went through
  std::unique_ptr<File> file_;
  JournalId id_;
  std::optional<Error> spoiled_;
  bool is_taken_back_ = false;
  std::uint64_t end_bytes_ = kBlockBytes;  // of the regions
  Writeback writeback_;                    // ends before the files
};

}  // namespace stfs
