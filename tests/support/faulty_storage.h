// A disk that fails on demand: a storage that injects a fault before selected calls.
//
// Calls on all files are counted from 1 in their order, so a sweep over the counts makes each step of an
// operation fail once.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "tests/support/intercepted_storage.h"

namespace stfs::test {

struct Fault {
  unsigned nth = 0;  // of the selected calls, from 1; 0: never
  int errno_value = EIO;
  std::optional<FileCall> kind;  // only calls of that kind count and fail
  bool only_changes = false;     // only calls that change something count and fail
  bool is_for_good = false;      // later selected calls fail also
  bool cuts_short = false;       // a failing read or write first does half of its bytes
};

/// The fault to inject. Any thread may call.
class FaultPlan : public Interceptor {
 public:
  /// Replaces the fault; the count of selected calls restarts.
  void set(const Fault& fault);
  /// The nth call from now on, of any kind, fails with that errno. 0: none.
  void fail_call(unsigned nth, int errno_value) { set({.nth = nth, .errno_value = errno_value, .kind = {}}); }
  /// The same for the nth call of one kind.
  void fail_call(FileCall kind, unsigned nth, int errno_value) {
    set({.nth = nth, .errno_value = errno_value, .kind = kind});
  }
  /// A failing write first writes the first half of its bytes.
  void tear_writes();

  /// Calls of all kinds since the plan was made.
  [[nodiscard]] unsigned calls() const;
  /// The first failed call, if any.
  [[nodiscard]] std::optional<SeamCall> failed_call() const;
  [[nodiscard]] std::optional<FileCall> failed() const;
  /// Whether bytes of a whole or torn write reached an archive since the plan was made.
  [[nodiscard]] bool has_touched_archive() const;

  Verdict before(const SeamCall& call) override;

 private:
  [[nodiscard]] bool is_about(const SeamCall& call) const;

  mutable std::mutex mutex_;  // guards all below
  Fault fault_;
  unsigned calls_ = 0;
  unsigned matching_calls_ = 0;
  std::optional<SeamCall> failed_;
  bool has_touched_archive_ = false;
};

class FaultyStorage final : private FaultPlan, public InterceptedStorage {
 public:
  explicit FaultyStorage(Storage& inner = system_storage())
      : InterceptedStorage(inner, static_cast<FaultPlan&>(*this)) {}
  [[nodiscard]] FaultPlan& plan() { return *this; }
};

}  // namespace stfs::test
