// The programs that run on a simulated machine, in a few places: where one ends, another one starts.
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

  /// @param table  of the processes that live.
  Programs(Kernel& kernel, ProcessTable& table) : kernel_(kernel), table_(table) {}

  /// From now on programs are of several users, each place of one; else of
  /// root.
  void set_users(bool are_several) { are_several_ = are_several; }
  /// One in each place.
  void fill();
  void start(Place& place);
  void fork(const Program& parent, Place& child);
  /// The program is busy until it has gone.
  void end(Place& place, Ending ending);
  /// All of them exit; a child that one has meanwhile exits, too.
  void end_all();
  /// As end_all(), with the connection gone.
  void drop_all();
  /// Nobody's descriptors are closed.
  void clear() { places_.clear(); }

  Place& place(std::uint32_t number) { return places_[number % places_.size()]; }
  Place& place_of(const Program& program);
  /// One that is not busy; null where all are.
  Program* pick(std::uint32_t number);
  static std::optional<std::size_t> pick_descriptor(const Program& program, std::uint32_t number);

 private:
  Kernel& kernel_;
  ProcessTable& table_;
  std::vector<Place> places_;
  bool are_several_ = false;
  pid_t last_id_ = 100;
};

/// While a program is in a system call, nobody else uses it.
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
