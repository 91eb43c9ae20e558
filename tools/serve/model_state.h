// The state of a model's files and of its weight sync, as a follower compares it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/model/model.h"
#include "core/storage/file.h"
#include "tools/sync/sync_state.h"
#include "tools/upload/plan.h"

namespace stfs::serve {

/// The content of a model's weight sync state (sync/sync_place.h). If the file cannot be read, the version is
/// empty.
struct ModelState {
  sync::SyncPlace place;
  std::vector<std::string> stamps{};         // sync::stamp_of() each shard; empty for a shard without archive
  std::string version{};                     // "000042"; empty: unknown
  std::optional<FileIdentity> state_file{};  // of state.json
  std::optional<sync::SyncChanges> changes{};
};

/// Reads the states of all models of a plan.
std::vector<ModelState> read_states(const upload::Plan& plan);
/// Returns the path of state.json.
std::filesystem::path state_file_of(const Model& model);

/// Returns the versions of all models for people: each once, separated by commas; empty: unknown.
std::string version_text(const std::vector<ModelState>& states);

/// Fails with ESTALE if an archive or a state has changed after the states were read.
Result<void> check_unchanged(const upload::Plan& plan, const std::vector<ModelState>& states);

// Check all models of a plan (core/model/settled_model.h):
Result<void> check_settled(const upload::Plan& plan);
Result<void> check_shown(const upload::Plan& plan);
/// Fails with EAGAIN while a receiver holds the lock of a model's weight sync. A receiver of another program
/// may write to the archives without their locks.
Result<void> check_no_receiver(const std::vector<ModelState>& states);

/// Returns true if the headers are the same, in the same files. Then the same request plans the same tensors.
bool has_same_structure(const upload::Plan& a, const upload::Plan& b);

/// The knowledge about an archive between two states of its model.
enum class ArchiveChange : std::uint8_t {
  None,    // no process has written to it
  Named,   // only tensors of the version that state.json names may have changed
  Unknown  // any tensor may have changed
};
/// Returns the change of each shard of a model, between two states with the same structure. Trusts state.json
/// if its version follows the version of `before`, and if no other program has written to the archive between
/// the two states.
std::vector<ArchiveChange> changes_between(const ModelState& before, const Model& model,
                                           const ModelState& state);

}  // namespace stfs::serve
