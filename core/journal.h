// One journal's file, on its way from staging to commit to retirement.
//
// The states of a journal, and what leads from one to the next:
//
//     staging ----- seal() -----> sealed ----- publish() -----> committed ----- retire() -----> gone
//        |                           |                              |
//     (dies, or the process does: nothing is left)          (a crash: recovery applies it)
//
// Invariants:
//  1. The archive is not touched before the journal is committed.
//  2. A journal has its final name only after all of its bytes are on stable storage.
//  3. It is committed when the directory that holds its name is on stable storage, and not before the
//     caller has the archive's locks on every block that it names.
//  4. While its owner lives, the owner holds an exclusive lock on the journal; so a journal under its
//     final name that can be locked belongs to a dead owner.
//  5. It is retired only after the archive's bytes that it names are on stable storage.
//  6. Applying it once more changes nothing.
//  7. After a failed sync of the archive it stays, and the archive is not written again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/journal_format.h"

namespace stfs {

/// What a commit outlives.
enum class Durability : std::uint8_t {
  Power,    // power loss: every sync is made
  Process,  // a killed process: no sync is made
};

/// Used by one thread at a time.
class Journal {
 public:
  /// A journal in staging, beside the archive.
  static Result<std::unique_ptr<Journal>> create(Storage& storage, const std::filesystem::path& archive_path);

  /// A new region of whole blocks; returns where it starts. Nothing is written or reserved yet.
  std::uint64_t allocate(std::uint64_t size_bytes);
  [[nodiscard]] File& file() const { return *file_; }
  [[nodiscard]] const JournalId& id() const { return id_; }

  /// Writes record and head, syncs them. May be repeated until publish(), but not after a failed sync: what
  /// the kernel calls clean then may never have reached the disk, so the journal is spoiled for good.
  Result<void> seal(JournalRecord record, Durability durability);
  /// The commit point. After a failure the journal is spoiled and its name gone; where even that failed,
  /// the error's code is CommitUnknown.
  Result<void> publish(Durability durability);
  /// Removes the name. Not synced: a journal that comes back is applied again, which changes nothing.
  Result<void> retire();

  /// The error that has spoiled it, if any.
  [[nodiscard]] const std::optional<Error>& spoiled() const { return spoiled_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// For a journal that stays because it could not be applied: whoever can may recover it now, and reads go
  /// through the file until then.
  [[nodiscard]] std::unique_ptr<File> give_up();

 private:
  Journal() = default;

  Storage* storage_ = nullptr;
  std::filesystem::path path_;  // the final name
  std::unique_ptr<File> file_;
  JournalId id_;
  std::optional<Error> spoiled_;
  std::uint64_t end_bytes_ = kBlockBytes;  // of the regions
};

}  // namespace stfs
