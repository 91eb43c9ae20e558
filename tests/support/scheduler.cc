#include "tests/support/scheduler.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/allocation_faults.h"

namespace stfs::test {
namespace {

thread_local Scheduler* scheduler_of_thread = nullptr;
thread_local std::int64_t slept_ns = 0;

constexpr std::int64_t kSecondNs = 1'000'000'000;

}  // namespace

Scheduler::~Scheduler() {
  for (const auto& actor : actors_) {
    if (actor->thread.joinable()) actor->thread.join();
  }
}

void Scheduler::add(std::function<void()> body) {
  actors_.push_back(std::make_unique<Actor>());
  actors_.back()->body = std::move(body);
}

void Scheduler::run() {
  std::unique_lock lock(mutex_);
  for (const auto& actor : actors_) actor->thread = std::thread([this, &actor] { work(*actor); });
  hand_over();
  all_ended_.wait(lock, [this] { return at_work_ == nullptr; });
}

void Scheduler::work(Actor& actor) {
  {
    std::unique_lock lock(mutex_);
    actor.wake.wait(lock, [&] { return at_work_ == &actor; });
  }
  scheduler_of_thread = this;
  slept_ns = 0;
  actor.body();
  scheduler_of_thread = nullptr;
  const std::scoped_lock lock(mutex_);
  actor.has_ended = true;
  hand_over();
}

void Scheduler::hand_over() {
  std::vector<Actor*> ready;
  for (const auto& actor : actors_) {
    if (!actor->has_ended) ready.push_back(actor.get());
  }
  at_work_ = ready.empty() ? nullptr : ready[choices_.below(ready.size())];
  if (at_work_ == nullptr) {
    all_ended_.notify_one();
  } else {
    at_work_->wake.notify_one();
  }
}

void Scheduler::pause() {
  Scheduler* self = scheduler_of_thread;
  if (self == nullptr) return;
  const NoAllocationFaults no_faults;
  std::unique_lock lock(self->mutex_);
  if (!self->choices_.one_in(self->switches_one_in_)) return;
  Actor* me = self->at_work_;
  self->hand_over();
  if (self->at_work_ != me) me->wake.wait(lock, [&] { return self->at_work_ == me; });
}

namespace {

int sleep_simulated(const timespec& time) {
  slept_ns += time.tv_sec * kSecondNs + time.tv_nsec;
  Scheduler::pause();
  return 0;
}

}  // namespace
}  // namespace stfs::test

// Replace the functions of the C library, which std::this_thread::sleep_for and std::chrono::steady_clock
// call.
extern "C" int nanosleep(const timespec* time, timespec* left) {
  if (stfs::test::scheduler_of_thread != nullptr) return stfs::test::sleep_simulated(*time);
  return static_cast<int>(::syscall(SYS_nanosleep, time, left));
}

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (stfs::test::scheduler_of_thread == nullptr || clock != CLOCK_MONOTONIC) {
    return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  }
  // Only sleeping takes time, so a deadline passes at the same step of every replay.
  now->tv_sec = 1 + stfs::test::slept_ns / stfs::test::kSecondNs;
  now->tv_nsec = stfs::test::slept_ns % stfs::test::kSecondNs;
  return 0;
}
