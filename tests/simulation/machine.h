// A simulated machine: its disk with the archive, the kernel with the mount, the programs, and the truth
// about them. Mounts, unmounts, and comes back after a crash.
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

/// What those who do something leave for those who come meanwhile, and later.
struct Situation {
  unsigned depth = 0;                                // 1: an operation is under way; 2: one that came into it
  std::optional<Target> reading;                     // that somebody reads
  std::string committing;                            // a transaction
  bool is_noticed = true;                            // the mount has looked at all changes
  bool was_replaced = false;                         // the archive, since it was mounted
  bool may_be_foreign = false;                       // a journal of an archive that has gone
  bool has_lost_power = false;                       // why the mount has gone
  int fault = 0;                                     // that the operation has met
  std::map<std::string, std::uint64_t> generations;  // that were shown last
};

class Machine {
 public:
  /// @param interceptor  is told of each call on the storage of a mount.
  /// @param wait  as Kernel's.
  Machine(std::uint64_t seed, SimulationCounts& counts, Interceptor& interceptor, std::function<bool()> wait);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  /// A disk with an archive, mounted.
  void begin();
  /// Unmounts; nothing may be left behind.
  void end();
  void remount();
  /// The mount is killed, whose end is seen by mount_again().
  void kill_mount();
  /// After a crash: what it left is what the truth says.
  void mount_again();

  [[nodiscard]] bool is_mounted() const { return mount_ != nullptr && !mount_->is_dead(); }
  [[nodiscard]] MountedArchive& mount() { return *mount_; }
  [[nodiscard]] DiskModel& disk() { return *disk_; }
  [[nodiscard]] SimulatedArchive& archive() { return archive_; }
  /// Other users may enter.
  [[nodiscard]] bool is_shared() const { return is_shared_; }
  /// Of a new archive.
  DiskAccess draw_access();
  [[nodiscard]] Kernel& kernel() { return kernel_; }
  [[nodiscard]] Programs& programs() { return programs_; }
  [[nodiscard]] Truth& truth() { return truth_; }
  [[nodiscard]] const Truth& truth() const { return truth_; }
  [[nodiscard]] Situation& situation() { return situation_; }
  [[nodiscard]] SimulationCounts& counts() { return counts_; }
  [[nodiscard]] Choices& choices() { return choices_; }
  /// The mount has committed something, and nobody has replaced the archive.
  [[nodiscard]] bool has_opened_for_writing() const {
    return truth_.commits_done() > commits_before_ && !situation_.was_replaced;
  }

 private:
  void mount_it();
  void unmount();
  /// Until nothing is under way.
  void calm_down();
  /// What lies in the file, whatever journals say.
  Contents stored();
  /// The same, once somebody has opened the archive after everybody was killed.
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
  std::uint64_t commits_before_ = 0;  // it was mounted
};

}  // namespace stfs::test
