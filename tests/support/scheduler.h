// Runs several actors, one at a time, in an order that follows from a seed. So races of threads and hosts
// happen on purpose, and can be replayed.
//
// Each actor is a thread that runs until it calls pause(). Time is simulated: a sleeping actor pauses, and
// its clock advances by the time that it would have slept.
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
  /// @param switches_one_in  one in so many pauses draws the next actor; the others change nothing. 1: each
  /// does.
  Scheduler(Choices& choices, std::size_t switches_one_in)
      : choices_(choices), switches_one_in_(switches_one_in) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler();

  /// Call add() before run(). The body may draw from the choices: no other thread does at that time.
  void add(std::function<void()> body);
  /// Returns when every actor has ended.
  void run();
  /// Lets another actor run first. Does nothing in a thread that is no actor.
  static void pause();

 private:
  struct Actor {
    std::function<void()> body;
    std::thread thread;
    std::condition_variable wake;
    bool has_ended = false;
  };
  void work(Actor& actor);
  /// Picks the next actor and wakes it. The mutex is held.
  void hand_over();

  Choices& choices_;
  const std::size_t switches_one_in_;
  std::mutex mutex_;  // guards the members below; passing it on orders the actors' access to shared data
  std::vector<std::unique_ptr<Actor>> actors_;
  Actor* at_work_ = nullptr;
  std::condition_variable all_ended_;
};

}  // namespace stfs::test
