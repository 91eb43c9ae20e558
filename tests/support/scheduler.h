// Several actors, one at a time, in an order that a seed decides: what threads and hosts do to each other by
// chance happens here on purpose, and again when it is replayed.
//
// Each actor is a thread that runs until it says that another may go. Time is simulated: a sleeping actor
// gives its turn away, and its clock goes on by what it would have slept.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/choices.h"

namespace stfs::test {

class Scheduler {
 public:
  /// @param stays_one_in  the actor at work goes on unless one in so many says otherwise; 1: drawn each time.
  Scheduler(Choices& choices, std::size_t switches_one_in)
      : choices_(choices), switches_one_in_(switches_one_in) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler();

  /// Before run(). The body may draw from the choices: nobody else does at that time.
  void add(std::function<void()> body);
  /// Until every actor has ended.
  void run();
  /// Called by the actor at work: the others may go first. Nothing happens in a thread that is no actor.
  static void pause();

 private:
  struct Actor {
    std::function<void()> body;
    std::thread thread;
    std::condition_variable wake;
    bool has_ended = false;
  };
  void work(Actor& actor);
  /// Picks who is next, and wakes him. The mutex is held.
  void hand_over();

  Choices& choices_;
  const std::size_t switches_one_in_;
  std::mutex mutex_;  // guards what follows, and whatever the actors share: only the one at work runs
  std::vector<std::unique_ptr<Actor>> actors_;
  Actor* at_work_ = nullptr;
  std::condition_variable all_ended_;
};

}  // namespace stfs::test
