// A disk that fails when a test tells it to: a storage with a fault put in front of chosen calls.
//
// Calls are counted from 1 in the order in which they come, whatever file they are made on, so that a sweep
// over every count makes every step of an operation fail once.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "tests/support/intercepted_storage.h"

namespace stfs::test {

struct Fault {
  unsigned nth = 0;  // of the calls that it is about, from 1; 0: never
  int errno_value = EIO;
  std::optional<FileCall> kind;  // only calls of that kind count and fail
  bool only_changes = false;     // only calls that change something count and fail
  bool is_for_good = false;      // the later calls that it is about fail too
  bool cuts_short = false;       // half of a read or write is done before
};

/// What is to fail. Any thread may call.
class FaultPlan : public Interceptor {
 public:
  /// From now on; counts begin anew.
  void set(const Fault& fault);
  /// The nth call from now on, of any kind, fails with that errno. 0: none.
  void fail_call(unsigned nth, int errno_value) { set({.nth = nth, .errno_value = errno_value, .kind = {}}); }
  /// The same for the nth call of one kind.
  void fail_call(FileCall kind, unsigned nth, int errno_value) {
    set({.nth = nth, .errno_value = errno_value, .kind = kind});
  }
  /// A write that fails has put the first half of its bytes before.
  void tear_writes();

  /// Calls since the plan was made, of whatever kind.
  [[nodiscard]] unsigned calls() const;
  /// The call that has failed first, if one has.
  [[nodiscard]] std::optional<SeamCall> failed_call() const;
  [[nodiscard]] std::optional<FileCall> failed() const;
  /// Bytes reached an archive since the plan was made; torn ones count.
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
