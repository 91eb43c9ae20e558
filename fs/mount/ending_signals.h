// SIGINT, SIGTERM and SIGHUP end a mount, whenever they come: before the loop has begun, in the middle of
// a request, or between libfuse's look at its flag and its sleep.
//
// They are blocked in every thread; one thread waits for them, ends the loop and wakes its main thread
// until that has noticed.
#pragma once

#include <pthread.h>

#include <atomic>
#include <functional>
#include <thread>

namespace stfs {

class EndingSignals {
 public:
  /// Blocks them in the calling thread and all that it starts from now on. Call first thing.
  static void block();

  EndingSignals() = default;
  ~EndingSignals() { stop(); }
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  /// From now on a signal calls `end`, once, on a thread of its own, and interrupts the system calls of
  /// the calling thread until stop().
  void start(std::function<void()> end);
  void stop();

 private:
  void wait(const std::function<void()>& end, pthread_t main_thread);

  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

}  // namespace stfs
