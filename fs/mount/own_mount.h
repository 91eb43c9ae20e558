// The mount of this process, known by its numbers. The path does not identify it: a user who may write a
// directory above the mount point can make the path lead elsewhere.
//
// The mount and its device have numbers, and the kernel may give both numbers to a later mount. Since Linux
// 6.8 a mount has one more number, which no other mount ever gets.
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
    std::string lasting;  // of statx(2); same as `id` before Linux 6.8
    std::string device;   // "MAJOR:MINOR"
  };

  explicit OwnMount(Numbers numbers) : numbers_(std::move(numbers)) {}

  /// Finds the mount that was made last. Fails with ESTALE if the mount is not on the mount point's
  /// directory, because the directory was exchanged. Call before any other program can know of the mount,
  /// because the mount is open for a moment.
  /// @param type  as in MountEntry
  static Result<OwnMount> find(const MountPoint& point, std::string_view type);

  [[nodiscard]] const Numbers& numbers() const { return numbers_; }
  /// Sends no request to the mounted file system. The functions below also send none.
  [[nodiscard]] bool is_mounted() const;
  /// Opens the file that ends the mount's connection (abort_connection()). Only root and the user who mounted
  /// may do so, and this user only if fusectl is mounted. @return a closed descriptor if the open fails.
  [[nodiscard]] UniqueFd open_abort_file() const;
  /// Aborts the connection, as `umount -f` does: every running request and notification ends with an error.
  /// The mount stays, and gives ENOTCONN.
  void abort() const;
  /// Unmounts, even if the mount is in use. An ordinary user's process uses fusermount3. Close the device's
  /// descriptor before this call, because pages that are not yet written would wait for an answer.
  void unmount() const;

 private:
  struct Place {
    UniqueFd root;  // O_PATH, with which an unmount without MNT_DETACH fails
    std::filesystem::path path;
  };
  /// Nothing if the mount is not mounted, or if the path that the kernel shows leads to another mount.
  [[nodiscard]] std::optional<Place> place() const;

  const Numbers numbers_;
};

/// Ends only the connection of this file. Does nothing if this connection has ended.
/// @return false if the write fails.
bool abort_connection(int abort_file);

}  // namespace stfs
