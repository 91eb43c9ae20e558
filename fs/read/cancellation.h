// Whether anybody still waits for what a thread works on, for the few works that take seconds.
#pragma once

#include <functional>
#include <utility>

namespace stfs {

/// Of this thread, while it lives; the innermost one counts. The handlers of requests make one, so that a
/// checksum of gigabytes ends with the program that has asked for it, and with the mount.
class Cancellation {
 public:
  explicit Cancellation(std::function<bool()> is_requested)
      : is_requested_(std::move(is_requested)), outer_(std::exchange(present_, this)) {}
  ~Cancellation() { present_ = outer_; }
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  /// False on a thread that has none.
  static bool is_requested() { return present_ != nullptr && present_->is_requested_(); }

 private:
  inline static thread_local const Cancellation* present_ = nullptr;
  const std::function<bool()> is_requested_;
  const Cancellation* const outer_;
};

}  // namespace stfs
