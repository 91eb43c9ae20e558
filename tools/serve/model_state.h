// The state in which a model's files and its weight sync are, as a follower compares them.
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

namespace stfs::upload {

/// What the state of a model's weight sync says (sync/sync_place.h). If the file cannot be read, the version
/// is empty.
struct ModelState {
  sync::SyncPlace place;
  std::vector<std::string> stamps{};  // sync::stamp_of() each of its shards; empty for one without archive
  std::string version{};              // "000042"; empty: none is known
  std::optional<FileIdentity> state_file{};  // of state.json
  std::optional<sync::SyncChanges> changes{};
};

/// Reads the states of all models of a plan.
std::vector<ModelState> read_states(const Plan& plan);
/// The path of state.json.
std::filesystem::path state_file_of(const Model& model);

/// The versions of all models for people: each once, separated by commas; empty if none is known.
std::string version_text(const std::vector<ModelState>& states);

/// Fails with ESTALE if an archive or a state has changed since.
Result<void> check_unchanged(const Plan& plan, const std::vector<ModelState>& states);

// Of all models of a plan (core/model/settled_model.h):
Result<void> check_settled(const Plan& plan);
Result<void> check_shown(const Plan& plan);
/// Fails with EAGAIN while a receiver holds the lock of a model's weight sync. A receiver of another program
/// may write to the archives without their locks.
Result<void> check_no_receiver(const std::vector<ModelState>& states);

/// Whether the headers are the same, in the same files. Then the same request plans the same tensors.
bool has_same_structure(const Plan& a, const Plan& b);

/// What is known of an archive between two states of its model.
enum class ArchiveChange : std::uint8_t {
  None,    // it was not written to
  Named,   // tensors of the version that state.json names may have changed, and no others
  Unknown  // any tensor may have changed
};
/// For each shard of a model, between two states with the same structure. Trusts state.json if its version
/// follows the version of `before`, and if nobody else has written to the archive between the two.
std::vector<ArchiveChange> changes_between(const ModelState& before, const Model& model,
                                           const ModelState& state);

}  // namespace stfs::upload
