// The processes that wrote the bytes that are pending.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace stfs {

/// The kernel's lock owner: one for each table of descriptors, thus one for each process. 0 where the kernel
/// does not say (cached writes).
using Owner = std::uint64_t;

/// Who a request comes from, as far as the kernel says.
struct Caller {
  Caller(Owner lock_owner = 0, pid_t of_thread = 0)
      : owner(lock_owner), thread(of_thread) {}  // NOLINT: implicit
  Owner owner;
  pid_t thread;  // 0 where it lives in another pid namespace
  [[nodiscard]] bool is_named() const { return owner != 0 || thread != 0; }
};

/// Not synchronized.
class Writers {
 public:
  /// A caller that is not named counts as note_unnamed().
  void note(Caller caller);
  /// Bytes came of which the kernel does not say who wrote them, as those of a mapping.
  void note_unnamed() { has_unnamed_ = true; }
  void clear();

  [[nodiscard]] bool empty() const { return known_.empty() && !has_unnamed_; }
  [[nodiscard]] bool has_unnamed() const { return has_unnamed_; }
  /// By the process where both are known, else by the owner.
  [[nodiscard]] bool contains(Owner owner, pid_t process) const;
  /// Another one than this lives, or may live.
  [[nodiscard]] bool others_live(Owner owner, pid_t process) const;
  /// A signal has ended one of them, and /proc still shows it.
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
