// The mounts of safetensorsfs on this machine, and their states.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/storage/file.h"
#include "core/storage/mount_table.h"

namespace stfs::tools {

/// The longest wait for the answer of a mount.
inline constexpr std::chrono::milliseconds kAnswerPatience{2000};

enum class MountState : std::uint8_t {
  Serving,
  Broken,   // it serves, but the model at its source can't be shown
  Dead,     // the daemon has ended
  Silent,   // no answer in time: the daemon is stopped, or hangs
  Closed,   // another user's mount without allow_other
  Covered,  // a later mount is on the same path, or the path leads elsewhere
};

struct ServedMount {
  MountEntry entry;
  MountState state = MountState::Silent;
  std::string problem{};  // of a broken mount
  std::optional<std::uint64_t> tensors{};
  std::optional<pid_t> daemon{};

  [[nodiscard]] bool is_read_only() const;
  /// The options that say more than a default: "rw,default_permissions,allow_other".
  [[nodiscard]] std::string shown_options() const;
};

/// Reads an open stats.json of a mount. Stops after 1 MiB, because another user's mount may send bytes
/// without end.
std::string read_stats(const UniqueFd& file);

/// Returns the word that tables and JSON show.
std::string_view name_of(MountState state);

/// Asks all mounts of this process's namespace at the same time, so one mount that does not answer costs
/// `patience` once.
std::vector<ServedMount> served_mounts(std::chrono::milliseconds patience = kAnswerPatience);

/// Returns the topmost mount of safetensorsfs at the path. Does not ask the mount. The message of a failure
/// starts with the path.
/// @return EINVAL if there is no mount of safetensorsfs, with advice if the path is inside of one. EACCES:
///   another user's link is in the path, and may lead to any mount.
Result<MountEntry> served_mount_at(const std::filesystem::path& named);

/// Returns the mount of safetensorsfs that the path is in, and the path with its links followed. Asks only
/// mounts above a file of the mount. EINVAL if there is none.
/// @param links  Trusted: EACCES for another user's link.
struct PlaceInMount {
  MountEntry mount;
  std::filesystem::path path;
};
Result<PlaceInMount> place_in_mount(const std::filesystem::path& named, Links links = Links::All);

}  // namespace stfs::tools
