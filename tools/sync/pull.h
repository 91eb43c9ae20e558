// Brings a model up to a published version, one version after the other, each whole or not at all.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/commit/commit_options.h"
#include "core/storage/file.h"
#include "tools/sync/publication.h"
#include "tools/sync/sync_place.h"
#include "tools/sync/version_apply.h"

namespace stfs::sync {

/// An event of a pull.
struct PullEvent {
  enum class Kind : std::uint8_t {
    Applied,     // the model has `version` now
    Seeded,      // the model has `version` now, a full one, whose files were copied
    Unfinished,  // a newer version is not whole yet, or may not be used; `why` has the reason
    Withdrawn,   // a version was withdrawn while it was read; the pull begins again
  };
  Kind kind = Kind::Applied;
  std::string version;                        // "000042"; empty if it is not known
  std::optional<std::string> base_version{};  // for Applied; nothing for a full version
  VersionOutcome outcome{};                   // for Applied
  std::chrono::milliseconds took{};           // for Applied and Seeded
  std::string why;
};

struct PullOptions {
  /// The work has one pass for each version, of the bytes that are read, or that are copied from a full
  /// version. If the work is stopped, the pull fails with EINTR, and the model keeps the version that it has
  /// then.
  VersionApplyOptions apply{};
  std::optional<std::uint64_t> target{};  // nothing: the newest version that is whole
  Storage* storage = &system_storage();   // of the model and of the versions
  /// Called with each event. An error ends the pull; versions that were applied stay applied.
  std::function<Result<void>(const PullEvent& event)> on_event{};
  /// Called with the open model before a version is applied.
  std::function<void(const Model& model)> on_open{};
};

/// Does one pull: looks for versions, applies the missing ones, returns.
/// @param model      an archive, an index or a directory. A directory that does not exist is made and seeded.
/// @param published  the directory of the versions.
/// @return the model's version after the pull; nothing if the model has none and nothing is published. EAGAIN
///   (is_unfinished): the target is not whole yet, or another user has the name of a file of the model, which
///   has its version without that file (check_placed()). The errors of Publication::way(), of seed_model()
///   and of apply_version(). After a failure the model has one version whole: the last one of on_event, or
///   the one before the pull. If nothing was applied to a model without a state, nothing is left beside the
///   model.
Result<std::optional<VersionNumber>> pull(const std::filesystem::path& model,
                                          const std::filesystem::path& published, const PullOptions& options);

/// ENOENT: there is no model, and the way to a version begins with changes of one.
/// @param published  the directory of the versions, for the message.
Result<void> check_beginning(const std::filesystem::path& model, const std::filesystem::path& published,
                             const Publication::Way& way, Storage& storage = system_storage());

/// Returns the place of a model's state, in the directory of its files. The model may not exist yet: then the
/// path names its directory. For a file that is no model the call fails as locate_target() does.
Result<SyncPlace> place_of_model(const std::filesystem::path& model, Storage& storage = system_storage());

}  // namespace stfs::sync
