// A simulated machine: a disk with the archive, the kernel with the mount, the programs, and the truth about
// them. It mounts and unmounts, and mounts again after a crash.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tests/simulation/mounted_archive.h"
#include "tests/simulation/programs.h"
#include "tests/simulation/simulated_archive.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/truth.h"
#include "tests/support/choices.h"

namespace stfs::test {

inline constexpr std::string_view kDirectory = "/models";
inline constexpr std::string_view kPath = "/models/model.safetensors";

/// Facts that an operation leaves for operations in its course, and for later ones.
struct Situation {
  unsigned depth = 0;                                // 1: an operation is under way; 2: one in its course
  std::optional<Target> reading;                     // an operation reads this
  std::string committing;                            // a transaction
  bool is_noticed = true;                            // the mount has looked at all changes
  bool was_replaced = false;                         // the archive, since it was mounted
  bool may_be_foreign = false;                       // a journal may be of an earlier archive
  bool has_lost_power = false;                       // the reason for the end of the mount
  int fault = 0;                                     // the errno of the operation's fault
  std::map<std::string, std::uint64_t> generations;  // the last ones shown
};

class Machine {
 public:
  /// @param interceptor  called for each call on the storage of a mount.
  /// @param wait  as for Kernel.
  Machine(std::uint64_t seed, SimulationCounts& counts, Interceptor& interceptor, std::function<bool()> wait);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  /// Makes a disk with an archive, and mounts it.
  void begin();
  /// Unmounts. Then no file may be left beside the archive.
  void end();
  void remount();
  /// Kills the mount. mount_again() handles the mount's end.
  void kill_mount();
  /// Mounts after a crash, and compares the archive with the truth.
  void mount_again();

  [[nodiscard]] bool is_mounted() const { return mount_ != nullptr && !mount_->is_dead(); }
  [[nodiscard]] MountedArchive& mount() { return *mount_; }
  [[nodiscard]] DiskModel& disk() { return *disk_; }
  [[nodiscard]] SimulatedArchive& archive() { return archive_; }
  /// Other users may enter the mount.
  [[nodiscard]] bool is_shared() const { return is_shared_; }
  /// Draws the access of a new archive.
  DiskAccess draw_access();
  [[nodiscard]] Kernel& kernel() { return kernel_; }
  [[nodiscard]] Programs& programs() { return programs_; }
  [[nodiscard]] Truth& truth() { return truth_; }
  [[nodiscard]] const Truth& truth() const { return truth_; }
  [[nodiscard]] Situation& situation() { return situation_; }
  [[nodiscard]] SimulationCounts& counts() { return counts_; }
  [[nodiscard]] Choices& choices() { return choices_; }
  /// The mount has committed something since it was mounted, and the archive was not replaced.
  [[nodiscard]] bool has_opened_for_writing() const {
    return truth_.commits_done() > commits_before_ && !situation_.was_replaced;
  }

 private:
  void mount_it();
  void unmount();
  /// Sends and invalidates until nothing is under way.
  void calm_down();
  /// Returns the tensors in the archive's file, without the journals.
  Contents stored();
  /// Returns the same after a kill of all processes and a recovery.
  Contents recovered();

  SimulationCounts& counts_;
  Interceptor& interceptor_;
  RandomChoices choices_;
  DiskOptions options_;
  bool is_shared_ = false;
  std::unique_ptr<DiskModel> disk_;
  SimulatedArchive archive_;
  ProcessTable processes_;
  Truth truth_;
  Kernel kernel_;
  std::unique_ptr<MountedArchive> mount_;
  Programs programs_;
  Situation situation_;
  std::uint64_t commits_before_ = 0;  // when it was mounted
};

}  // namespace stfs::test
