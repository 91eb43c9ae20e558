// Our mount, known by its numbers. Its path proves nothing: a user who may write a directory above the mount
// point can have the path lead elsewhere.
//
// The numbers are those of the mount and of its device. The kernel gives both again to a later mount. From
// Linux 6.8 on a mount has one more number, which no other mount ever gets.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "fs/mount/mount_point.h"

namespace stfs {

class OwnMount {
 public:
  struct Numbers {
    std::string id;       // in /proc/self/mountinfo
    std::string lasting;  // of statx(2); `id` again before Linux 6.8
    std::string device;   // "MAJOR:MINOR"
  };

  explicit OwnMount(Numbers numbers) : numbers_(std::move(numbers)) {}

  /// Finds the mount that was made last. Fails with ESTALE if it does not lie on the mount point's directory,
  /// because that was exchanged. Call it before anybody can know of the mount, because it is open for a
  /// moment.
  /// @param type  as in MountEntry
  static Result<OwnMount> find(const MountPoint& point, std::string_view type);

  [[nodiscard]] const Numbers& numbers() const { return numbers_; }
  /// Sends no request to the mounted file system, as all that follow.
  [[nodiscard]] bool is_mounted() const;
  /// Opens the file that ends the mount's connection (abort_connection()). Only root and the user who mounted
  /// may do so, and the latter only where fusectl is mounted. @return a closed one if that fails.
  [[nodiscard]] UniqueFd open_abort_file() const;
  /// Aborts the connection, as `umount -f` does: every running request and notification ends with an error.
  /// The mount stays, and gives ENOTCONN.
  void abort() const;
  /// Unmounts, also what is in use. An ordinary user's process does it with fusermount3. Close the device's
  /// descriptor before: pages that are not yet written would wait for an answer.
  void unmount() const;

 private:
  struct Place {
    UniqueFd root;  // O_PATH: an unmount without MNT_DETACH fails
    std::filesystem::path path;
  };
  /// Nothing if it is not mounted, or if the path that the kernel shows leads to another mount.
  [[nodiscard]] std::optional<Place> place() const;

  const Numbers numbers_;
};

/// Ends the connection whose file this is, and no other: does nothing if that one has ended.
/// @return false if it can't.
bool abort_connection(int abort_file);

}  // namespace stfs
