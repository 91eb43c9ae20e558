// What a host knows of a model's weight sync: a directory beside the model (sync_place.h), with a lock file
// and state.json, {"version": "000041"}. SGLang's receiver uses the same files in the same way.
//
// This program adds "model", the file name of the archive or index, and "changed_since" and "changed" where
// it knows which tensors a version has changed: the version before, and their names; and "changed_from",
// stamps of the archives before the version; and "brought", the names of the files beside the model's
// archives that full versions have brought, which the next one may replace. A writer that does not know these
// members writes the file without them.
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
#include "tools/sync/version_name.h"

namespace stfs::sync {

/// Reads the version that a model has, without the lock. Nothing if no version was ever applied.
/// InvalidArgument (EINVAL): state.json is damaged; the message says what to do.
Result<std::optional<VersionNumber>> read_sync_state(const SyncPlace& place,
                                                     Storage& storage = system_storage());

/// What the last version has changed, for followers that have the version before.
struct SyncChanges {
  std::string since;  // the version before
  std::vector<std::string> tensors;
  /// stamp_of() the archives that the version changes, before it, by their files' names. If a follower's
  /// stamp is another one, another program has changed the archive too.
  std::map<std::string, std::string> from;
};
/// Reads the changes that led to the version in state.json. Nothing if the file does not say it.
std::optional<SyncChanges> read_sync_changes(const SyncPlace& place);
/// The model that state.json names. Nothing if it names none, or can't be read.
std::optional<std::string> model_in_sync_state(const SyncPlace& place, Storage& storage = system_storage());

/// A short text that tells states of an archive's file apart: by its number, size and time, as they were when
/// the archive was opened or at its own last commit.
std::string stamp_of(const ArchiveReader& archive);

/// Whether a receiver holds the lock of the model's directory: it may be changing the model. Takes the lock
/// for a moment if nobody holds it. A user who may not open the lock file learns it from /proc/locks, on this
/// host.
bool is_sync_locked(const SyncPlace& place);

/// Holds the lock, under which alone versions are applied. Move-only. The lock ends with the object or the
/// process. First take the lock, then open the model, then read: a commit that the last receiver could not
/// finish may hold the state, and opening the model finishes it.
class SyncState {
 public:
  /// Makes the directory and the lock file if they do not exist, and takes the lock (flock). Finishes or
  /// undoes a full version that a killed receiver has left (file_switch.h).
  /// ELOOP: the place is a symbolic link.
  /// @param patience   how long to wait for another receiver. Busy (EBUSY): it has not ended by then.
  /// @param storage    must outlive it.
  /// @param work       may be null. Its watch runs while the call waits; EINTR if it is stopped.
  static Result<SyncState> lock(const SyncPlace& place, std::chrono::milliseconds patience,
                                Storage& storage = system_storage(), Work* work = nullptr);

  /// For callers that only look.
  static SyncState without_lock(const SyncPlace& place);
  /// Call when nothing was applied: removes the place, unless there is a state in it.
  void leave_nothing() const;
  [[nodiscard]] Storage& storage() const { return *storage_; }
  [[nodiscard]] const SyncPlace& place() const { return place_; }
  [[nodiscard]] std::filesystem::path model_directory() const { return place_.model_folder(); }
  /// Reads state.json. Fails as read_sync_state() does.
  Result<void> read();
  // After read():
  /// The version that the model has. Nothing if no version was ever applied.
  [[nodiscard]] const std::optional<VersionNumber>& version() const { return version_; }
  /// The files that earlier versions have brought.
  [[nodiscard]] std::set<std::string> brought() const;
  /// The text of state.json with another version. All other members stay as they are.
  /// @param changes  nothing: any tensor may have changed.
  /// @param model    the file name that the archive or index will have; empty: it keeps its name.
  /// @param brought  files that this version brings, beside those of earlier ones.
  [[nodiscard]] std::string text_with(const VersionNumber& version, const std::optional<SyncChanges>& changes,
                                      const std::string& model = {},
                                      const std::set<std::string>& brought = {}) const;
  /// Replaces state.json, whole or not at all.
  /// @param durability  Process: nothing is synced. A loss of power can leave an empty file, which counts as
  ///                    none, or a state whose version the tensors lack: nor were they synced.
  Result<void> write(const VersionNumber& version, Durability durability = Durability::Power);
  /// The same with a text of text_with().
  Result<void> write_text(const std::string& text, Durability durability);

 private:
  SyncState(SyncPlace place, Storage& storage) : storage_(&storage), place_(std::move(place)) {}
  /// Takes the lock if nobody holds it, and the file still has its name then.
  Result<bool> try_lock();

  /// Lets those open the lock file who may update the model, and no others: whoever can open a file can hold
  /// a lock of flock(2) on it.
  void keep_private(File& lock) const;
  /// What the last receiver, which was killed, may have left to be done.
  Result<void> tidy() const;

  Storage* storage_;
  SyncPlace place_;
  UniqueFd lock_;
  std::string text_;  // of state.json; empty: there is none
  std::optional<VersionNumber> version_;
};

}  // namespace stfs::sync
