// The programs on a simulated machine, each in a place. When one ends, another one starts in its place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tests/simulation/kernel.h"
#include "tests/simulation/processes.h"

namespace stfs::test {

class Programs {
 public:
  using Place = std::unique_ptr<Program>;

  /// @param table  the living processes.
  Programs(Kernel& kernel, ProcessTable& table) : kernel_(kernel), table_(table) {}

  /// If true, later programs have several users, one for each place. Otherwise they run as root.
  void set_users(bool are_several) { are_several_ = are_several; }
  /// Starts a program in each empty place.
  void fill();
  void start(Place& place);
  void fork(const Program& parent, Place& child);
  /// The program is busy until it has ended.
  void end(Place& place, Ending ending);
  /// Ends all programs, also a child that one of them starts in the meantime.
  void end_all();
  /// Does the same as end_all() after the connection has ended.
  void drop_all();
  /// Removes all programs without closing their file descriptors.
  void clear() { places_.clear(); }

  Place& place(std::uint32_t number) { return places_[number % places_.size()]; }
  Place& place_of(const Program& program);
  /// Returns a program that is not busy, or null if all are busy.
  Program* pick(std::uint32_t number);
  static std::optional<std::size_t> pick_descriptor(const Program& program, std::uint32_t number);

 private:
  Kernel& kernel_;
  ProcessTable& table_;
  std::vector<Place> places_;
  bool are_several_ = false;
  pid_t last_id_ = 100;
};

/// Marks a program in a system call as busy, so that no other operation uses the program.
class Busy {
 public:
  explicit Busy(Program& program) : program_(program) { program_.is_busy = true; }
  ~Busy() { program_.is_busy = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Program& program_;
};

}  // namespace stfs::test
