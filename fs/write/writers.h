// Remembers which processes wrote the pending bytes of a file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace stfs {

/// The kernel's lock owner. Each table of descriptors has one, so each process has one. 0 if the kernel does
/// not name it (cached writes).
using Owner = std::uint64_t;

/// The origin of a request, as far as the kernel names it.
struct Caller {
  Caller(Owner lock_owner = 0, pid_t of_thread = 0) : owner(lock_owner), thread(of_thread) {}
  Owner owner;
  pid_t thread;  // 0 if it is in another pid namespace
  [[nodiscard]] bool is_named() const { return owner != 0 || thread != 0; }
};

/// Not synchronized.
class Writers {
 public:
  /// Notes a writer. Calls note_unnamed() if the caller is not named (Caller::is_named()).
  void note(Caller caller);
  /// Notes bytes whose writer the kernel does not name, for example bytes of a mapping.
  void note_unnamed() { has_unnamed_ = true; }
  void clear();

  [[nodiscard]] bool empty() const { return known_.empty() && !has_unnamed_; }
  [[nodiscard]] bool has_unnamed() const { return has_unnamed_; }
  /// Compares the processes if both are known, otherwise the owners.
  [[nodiscard]] bool contains(Owner owner, pid_t process) const;
  /// True if another writer than this one is alive, or may be alive.
  [[nodiscard]] bool others_live(Owner owner, pid_t process) const;
  /// True if a signal has ended one of the writers, and /proc still shows it.
  [[nodiscard]] bool is_any_killed() const;

 private:
  struct Writer {
    Caller caller;
    pid_t process = 0;
    [[nodiscard]] bool is(Owner owner, pid_t of_process) const;
  };
  std::vector<Writer> known_;
  bool has_unnamed_ = false;
};

}  // namespace stfs
