// Gives a model's directory other files and another sync state in one step, also after a kill or a loss of
// power.
//
// The step is one rename: of the index, or of the only archive. All new files are on stable storage before. A
// note in the place of the sync state says what is under way, so that whoever takes the lock next finishes or
// undoes it:
//
//   noted        new files are being made       undone: they are removed
//   ready        they are whole                 undone while `step.from` exists, else finished
//
// A note counts only if its maker may write the model's directory (sync_place.h).
//
// Once ready, state.json has another name until the new state takes its place: a receiver that does not know
// the note never finds a state of another version than the files'.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/storage/file.h"
#include "tools/sync/sync_place.h"

namespace stfs::sync {

/// Names of files in the model's directory. `from` is a temporary name.
struct FileSwitch {
  struct Move {
    std::string from;
    std::string to;
  };
  std::vector<std::string> archives;  // new ones, under names that nothing refers to before the step
  Move step;
  std::vector<Move> after;           // other files, which get their names after the step
  std::vector<std::string> removed;  // files of the model before
};

/// Where the new state lies until the step.
std::filesystem::path next_sync_state(const SyncPlace& place);

// These functions are for one thread, which holds the lock of the model's sync state.

/// Notes the switch. Call it before any of its files is made.
Result<void> note_switch(Storage& storage, const SyncPlace& place, const FileSwitch& files);
/// Takes the step and what comes after it. All new files and the new state are there and synced, but for
/// their names. A failure before the step undoes everything. Behind it, the message says that the change is
/// made.
Result<void> take_switch(Storage& storage, const SyncPlace& place, const FileSwitch& files);
/// Removes the new files and the note.
Result<void> undo_switch(Storage& storage, const SyncPlace& place, const FileSwitch& files);
/// Finishes or undoes what a process that has died was about to do. Does nothing if there is no note.
Result<void> recover_switch(Storage& storage, const SyncPlace& place);

/// The file name of the index or archive that the step of a noted switch makes; nothing without a note that
/// can be read.
std::optional<std::string> model_in_switch(Storage& storage, const SyncPlace& place);

/// @return whether a file has this name. Also true if the store can't tell.
bool is_taken_name(Storage& storage, const std::filesystem::path& path);
/// The file that has the sync state of the model's present files: SyncPlace::state(), but for the moment of
/// the step.
std::filesystem::path present_sync_state(Storage& storage, const SyncPlace& place);

}  // namespace stfs::sync
