// Gives a model's directory other files and another sync state in one step, even across a kill or a loss of
// power.
//
// The step is one rename: of the index, or of the only archive. Before the step all new files are on stable
// storage. A note beside the sync state describes the switch, so that the next process that takes the lock
// finishes or undoes it:
//
//   noted        new files are being made       undone: the new files are removed
//   ready        the new files are whole        undone while `step.from` exists, else finished
//
// A note is used only if its maker may write the model's directory (sync_place.h).
//
// Another user may take one of the names (switch_names.h). The final names are checked directly before the
// step: if one is taken, the switch is undone. If a name is taken after the step, all other changes are made,
// and the note stays, ready, for the files that are left; each process that takes the lock tries to place
// them.
//
// From "ready" on, state.json has another name until the new state takes its place. A receiver that does not
// know the note thus never finds the state of one version beside the files of another.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/storage/file.h"
#include "tools/sync/sync_place.h"

namespace stfs::sync {

/// The names of files in the model's directory. `from` is a temporary name.
struct FileSwitch {
  struct Move {
    std::string from;
    std::string to;
  };
  std::vector<std::string> archives;  // new archives, under names that nothing refers to before the step
  Move step;
  std::vector<Move> after;           // other files, which get their names after the step
  std::vector<std::string> removed;  // files of the model before the switch
};

/// Returns the path of the new state until the step.
std::filesystem::path next_sync_state(const SyncPlace& place);

// One thread calls these functions, and holds the lock of the model's sync state.

/// Notes the switch. The caller calls this before it makes any of the files. Removes files that an earlier
/// switch could not place: the new version replaces them.
Result<void> note_switch(Storage& storage, const SyncPlace& place, const FileSwitch& files);
/// Takes the step and finishes the switch. All new files and the new state must exist and be synced; only
/// their names are missing. A failure before the step undoes everything. After the step, the message says
/// that the change is made. EEXIST: another user has a final name; everything is undone. If such a name is
/// taken after the step, the call succeeds, and check_placed() fails.
Result<void> take_switch(Storage& storage, const SyncPlace& place, const FileSwitch& files);
/// Removes the new files and the note.
Result<void> undo_switch(Storage& storage, const SyncPlace& place, const FileSwitch& files);
/// Finishes or undoes the switch of a process that has died. Does nothing if there is no note.
Result<void> recover_switch(Storage& storage, const SyncPlace& place);

/// EAGAIN: the step of a switch was taken, and a file is left whose name another user has. The message names
/// the entry. The caller has recovered or taken the switch.
Result<void> check_placed(Storage& storage, const SyncPlace& place);

/// Returns the file name of the index or archive that the step of a noted switch makes; nothing without a
/// readable note.
std::optional<std::string> model_in_switch(Storage& storage, const SyncPlace& place);

/// @return true if a file has this name, or if the store can't say.
bool is_taken_name(Storage& storage, const std::filesystem::path& path);
/// Returns the file that has the sync state of the model's present files. This is SyncPlace::state(), except
/// at the moment of the step.
std::filesystem::path present_sync_state(Storage& storage, const SyncPlace& place);

}  // namespace stfs::sync
