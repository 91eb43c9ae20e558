// Lets long work on a thread, for example a checksum, find out whether a caller still waits for its result.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

namespace stfs {

/// Applies to the thread that constructs it, from construction to destruction. If several are nested, the
/// innermost applies. The handlers of requests construct one, so that a checksum of gigabytes stops when the
/// program that asked for it ends, or when the mount ends.
class Cancellation {
 public:
  explicit Cancellation(std::function<bool()> is_requested)
      : is_requested_(std::move(is_requested)), outer_(std::exchange(present_, this)) {}
  ~Cancellation() { present_ = outer_; }
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  /// False on a thread that has no Cancellation.
  static bool is_requested() { return present_ != nullptr && present_->is_requested_(); }

  /// Call when the mount ends, or in the handler of a signal that ends the program. Calls that wait for
  /// another process's lock then retry once, and give up. Calls that wait for a web server give up.
  static void note_end() { is_end_ = true; }
  static bool is_end() { return is_end_; }

 private:
  inline static std::atomic<bool> is_end_ = false;
  inline static thread_local const Cancellation* present_ = nullptr;
  const std::function<bool()> is_requested_;
  const Cancellation* const outer_;
};

}  // namespace stfs
