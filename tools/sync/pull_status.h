// Compares a model with the versions that training publishes. Changes nothing, and needs no receiver.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tools/sync/version_format.h"

namespace stfs::sync {

struct PullStatus {
  std::optional<VersionNumber> version{};             // of the model; nothing: no version was ever applied
  std::optional<std::chrono::seconds> version_age{};  // since the model got it
  std::optional<VersionNumber> newest{};              // the newest directory, whole or not
  std::optional<std::chrono::seconds> newest_age{};   // since its index was written; nothing without an index
  std::vector<std::string> missing{};                 // the versions that a pull would apply now, in order
  std::optional<std::string> unfinished{};            // the reason why a newer version can't be applied yet
  std::optional<std::string> problem{};               // the reason why a pull would fail now
  bool is_updating = false;                           // a receiver holds the lock, so it changes the model
};

/// Looks at a model and at the directory of the versions. A receiver and a publisher may be at work, so the
/// result may be outdated already. Opens the versions on the way, but does not read their diffs.
/// @param model      the same as for pull(). The model may not exist yet.
/// @return the errors of Publication::look() and of read_sync_state(). Errors of single versions are in
///   PullStatus::problem.
Result<PullStatus> look_at_pull(const std::filesystem::path& model, const std::filesystem::path& published);

}  // namespace stfs::sync
