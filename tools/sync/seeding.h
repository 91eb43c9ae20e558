// Gives a directory the files of a full version: on a host that has no model yet, or that has another one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "core/base/error.h"
#include "tools/sync/published_version.h"
#include "tools/sync/sync_state.h"

namespace stfs::sync {

/// Whether the directory holds any archive.
bool has_model(const std::filesystem::path& directory);

/// The bytes that seed_model() copies, as far as they are known.
std::uint64_t seeded_bytes(const PublishedVersion& version);

/// Copies all files of the version into the state's directory, each whole or not at all, and the index last.
/// Then removes the archives that only the index before names. Foreign files stay.
/// Removes state.json first and writes it last: a host that is killed or loses power meanwhile seeds again.
/// @param on_bytes  called with the bytes copied since the last call; an error ends the copy.
/// @return EEXIST (InvalidArgument): an archive of the present model has the name of one that the version
/// has,
///   and another content would be seen half: pull into a new directory. The errors of the stores.
Result<void> seed_model(const PublishedVersion& version, SyncState& state,
                        const std::function<Result<void>(std::uint64_t bytes)>& on_bytes);

}  // namespace stfs::sync
