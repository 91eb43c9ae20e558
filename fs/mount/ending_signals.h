// Makes SIGINT, SIGTERM and SIGHUP end a mount at any moment: before the loop has begun, in the middle of a
// request, or between libfuse's check of its flag and its sleep.
//
// The signals are blocked in every thread. One thread waits for them, ends the loop, and repeatedly wakes the
// loop's main thread until the loop has ended.
#pragma once

#include <pthread.h>

#include <atomic>
#include <functional>
#include <thread>

namespace stfs {

class EndingSignals {
 public:
  /// Blocks the signals in the calling thread, and in all threads that it starts later. Call before any other
  /// thread starts.
  static void block();

  EndingSignals() = default;
  ~EndingSignals() { stop(); }
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  struct Calls {
    std::function<void()> end;      // at the first signal
    std::function<void()> be_late;  // if stop() has not been called five seconds later
  };
  /// From now on the first signal makes the calls on another thread, and interrupts the system calls of the
  /// calling thread until let_be().
  void start(Calls calls);
  /// Interrupts no system call any more. The calling thread of start() calls it.
  void let_be() { wakes_ = false; }
  void stop();

 private:
  void wait(const Calls& calls, pthread_t main_thread);

  std::atomic<bool> is_stopping_ = false;
  std::atomic<bool> wakes_ = true;
  std::thread thread_;
};

}  // namespace stfs
