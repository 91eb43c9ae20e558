// The state of a model's weight sync on a host: a directory beside the model (sync_place.h), with a lock file
// and state.json, {"version": "000041"}. SGLang's receiver uses the same files in the same way.
//
// This program adds members to state.json. "model" is the file name of the archive or index. If it knows
// which tensors a version has changed, "changed_since" is the version before, "changed" has the tensors'
// names, and "changed_from" has stamps of the archives before the version. "brought" has the names of the
// files beside the model's archives that full versions have brought, and that the next full version may
// replace. A writer that does not know these members writes the file without them.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/archive/archive_reader.h"
#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/base/work.h"
#include "core/storage/file.h"
#include "tools/sync/sync_place.h"
#include "tools/sync/version_format.h"

namespace stfs::sync {

/// Reads the version that a model has, without the lock. Nothing if no version was ever applied.
/// InvalidArgument (EINVAL): state.json is damaged; the message says how to repair it.
Result<std::optional<VersionNumber>> read_sync_state(const SyncPlace& place,
                                                     Storage& storage = system_storage());

/// The changes of the last version, for followers that have the version before.
struct SyncChanges {
  std::string since;  // the version before
  std::vector<std::string> tensors;
  /// For each archive that the version changes, by its file's name: stamp_of() the archive before the
  /// version. If a follower has another stamp, another program has changed the archive also.
  std::map<std::string, std::string> from;
};
/// Reads the changes that led to the version in state.json. Nothing if the file does not have them.
std::optional<SyncChanges> read_sync_changes(const SyncPlace& place);
/// Returns the model that state.json names. Nothing if it names none, or can't be read.
std::optional<std::string> model_in_sync_state(const SyncPlace& place, Storage& storage = system_storage());

/// Returns a short text that identifies a state of an archive's file, from the inode number, size and time
/// that the file had when the archive was opened or at its last own commit.
std::string stamp_of(const ArchiveReader& archive);

/// Returns true if a receiver holds the lock of the model's directory: it may be changing the model. If the
/// lock is free, the call takes it for a moment. For a user who may not open the lock file, the call reads
/// /proc/locks, which has the locks of this host.
bool is_sync_locked(const SyncPlace& place);

/// Holds the lock, which is required for applying versions. Move-only. The lock ends with the object or the
/// process. The order is: take the lock, open the model, read. A commit that the last receiver could not
/// finish may hold the state, and opening the model finishes that commit.
class SyncState {
 public:
  /// Makes the directory and the lock file if they do not exist, and takes the lock (flock). Finishes or
  /// undoes a full version that a killed receiver has left (file_switch.h). ELOOP: the place is a symbolic
  /// link.
  /// @param patience   the longest wait for another receiver. Busy (EBUSY): that receiver still holds the
  ///                   lock.
  /// @param storage    must outlive this object.
  /// @param work       may be null. Its watch runs while the call waits. EINTR: the work was stopped.
  static Result<SyncState> lock(const SyncPlace& place, std::chrono::milliseconds patience,
                                Storage& storage = system_storage(), Work* work = nullptr);

  /// For callers that change nothing.
  static SyncState without_lock(const SyncPlace& place);
  /// Called when nothing was applied: removes the place, unless a state is in it.
  void leave_nothing() const;
  [[nodiscard]] Storage& storage() const { return *storage_; }
  [[nodiscard]] const SyncPlace& place() const { return place_; }
  [[nodiscard]] std::filesystem::path model_directory() const { return place_.model_folder(); }
  /// Reads state.json. Fails as read_sync_state() does.
  Result<void> read();
  // After read():
  /// The version that the model has. Nothing if no version was ever applied.
  [[nodiscard]] const std::optional<VersionNumber>& version() const { return version_; }
  /// Returns the files that earlier versions have brought.
  [[nodiscard]] std::set<std::string> brought() const;
  /// Returns the text of state.json with another version. All other members stay unchanged.
  /// @param changes  nothing: any tensor may have changed.
  /// @param model    the file name that the archive or index will have; empty: its name stays.
  /// @param brought  files that this version brings, in addition to the files of earlier versions.
  /// @return EFBIG: the text is too long to be read again. If only the changes make it too long, the text has
  ///   no changes.
  [[nodiscard]] Result<std::string> text_with(const VersionNumber& version,
                                              const std::optional<SyncChanges>& changes,
                                              const std::string& model = {},
                                              const std::set<std::string>& brought = {}) const;
  /// Replaces state.json, whole or not at all.
  /// @param durability  Process: nothing is synced. A loss of power can leave an empty file, which is handled
  /// like a missing one. A loss of power can also leave a state whose version the tensors lack, because the
  /// tensors were not synced either.
  Result<void> write(const VersionNumber& version, Durability durability = Durability::Power);
  /// Does the same with a text of text_with().
  Result<void> write_text(const std::string& text, Durability durability);

 private:
  SyncState(SyncPlace place, Storage& storage) : storage_(&storage), place_(std::move(place)) {}
  /// Takes the lock if it is free, and if the file still has its name then.
  Result<bool> try_lock();

  /// Lets exactly the users who may update the model open the lock file: a user who can open a file can hold
  /// a lock of flock(2) on it.
  void keep_private(File& lock) const;
  /// Finishes the work that the last receiver has left, if it was killed.
  Result<void> tidy() const;

  Storage* storage_;
  SyncPlace place_;
  UniqueFd lock_;
  std::string text_;  // the text of state.json; empty: there is none
  std::optional<VersionNumber> version_;
};

}  // namespace stfs::sync
