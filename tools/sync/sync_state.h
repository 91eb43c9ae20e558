// What a host knows of a model's weight sync: the directory .weight_sync beside the model, with a lock file
// and state.json, {"version": "000041"}. SGLang's receiver uses the same files in the same way.
//
// This program adds "changed_since" and "changed" where it knows which tensors a version has changed: the
// version before, and their names; and "changed_from", stamps of the archives before the version. A
// writer that does not know these members writes the file without them.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/archive/archive_reader.h"
#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/storage/file.h"
#include "tools/sync/version_name.h"

namespace stfs::sync {

/// Reads the version that a model has, without the lock. Nothing if no version was ever applied.
/// InvalidArgument (EINVAL): state.json is damaged; the message says what to do.
/// @param directory  the model's.
Result<std::optional<VersionNumber>> read_sync_state(const std::filesystem::path& directory,
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
std::optional<SyncChanges> read_sync_changes(const std::filesystem::path& directory);

/// A short text that tells states of an archive's file apart: by its number, size and time, as they were when
/// the archive was opened or at its own last commit.
std::string stamp_of(const ArchiveReader& archive);

/// Whether a receiver holds the lock of the model's directory: it may be changing the model. Takes the lock
/// for a moment if nobody holds it.
bool is_sync_locked(const std::filesystem::path& directory);

/// Holds the lock, under which alone versions are applied. Move-only. The lock ends with the object or the
/// process. First take the lock, then open the model, then read: a commit that the last receiver could not
/// finish may hold the state, and opening the model finishes it.
class SyncState {
 public:
  /// Makes the directory and the lock file if they do not exist, and takes the lock (flock). Finishes or
  /// undoes a full version that a killed receiver has left (file_switch.h).
  /// @param directory  the model's.
  /// @param patience   how long to wait for another receiver. Busy (EBUSY): it has not ended by then.
  /// @param storage    must outlive it.
  static Result<SyncState> lock(const std::filesystem::path& directory, std::chrono::milliseconds patience,
                                Storage& storage = system_storage());

  /// For callers that only look.
  static SyncState without_lock(const std::filesystem::path& directory);
  [[nodiscard]] Storage& storage() const { return *storage_; }
  [[nodiscard]] std::filesystem::path model_directory() const { return directory_.parent_path(); }
  /// Reads state.json. Fails as read_sync_state() does.
  Result<void> read();
  // After read():
  /// The version that the model has. Nothing if no version was ever applied.
  [[nodiscard]] const std::optional<VersionNumber>& version() const { return version_; }
  /// The text of state.json with another version. All other members stay as they are.
  /// @param changes  nothing: any tensor may have changed.
  [[nodiscard]] std::string text_with(const VersionNumber& version,
                                      const std::optional<SyncChanges>& changes) const;
  /// Replaces state.json, whole or not at all.
  /// @param durability  Process: nothing is synced. A loss of power can leave an empty file, which counts as
  ///                    none, or a state whose version the tensors lack: nor were they synced.
  Result<void> write(const VersionNumber& version, Durability durability = Durability::Power);

 private:
  SyncState(std::filesystem::path directory, Storage& storage)
      : storage_(&storage), directory_(std::move(directory)) {}

  /// What the last receiver, which was killed, may have left to be done.
  Result<void> tidy() const;

  Storage* storage_;
  std::filesystem::path directory_;  // .weight_sync
  UniqueFd lock_;
  std::string text_;  // of state.json; empty: there is none
  std::optional<VersionNumber> version_;
};

}  // namespace stfs::sync
