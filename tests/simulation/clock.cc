// Replaces functions of the C library.
#include "tests/simulation/clock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace stfs::test {
namespace {

bool is_simulated = false;
std::int64_t now_ns = 0;
std::function<void()> sleeps;
std::function<void()> stands_still;

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kBeginNs = 1'700'000'000 * kSecondNs;

void pass(std::int64_t duration_ns) {
  now_ns += duration_ns;
  if (sleeps) sleeps();
}

std::int64_t ns_of(const timespec& time) {
  return time.tv_sec * kSecondNs + time.tv_nsec;
}

/// The only thread holds the lock already. No exception may leave the C library.
[[noreturn]] void stand_still(const char* what) {
  std::fprintf(stderr,
               "STANDS STILL: a call that must not wait waits for %s, while another one waits for the disk\n",
               what);
  if (stands_still) stands_still();
  std::abort();
}

}  // namespace

SimulatedClock::SimulatedClock(std::function<void()> on_sleep, std::function<void()> on_standstill) {
  now_ns = 0;
  sleeps = std::move(on_sleep);
  stands_still = std::move(on_standstill);
  is_simulated = true;
}

SimulatedClock::~SimulatedClock() {
  is_simulated = false;
  sleeps = {};
  stands_still = {};
}

}  // namespace stfs::test

using namespace stfs::test;

extern "C" {

int nanosleep(const timespec* time, timespec* left) {
  if (!is_simulated) return static_cast<int>(::syscall(SYS_nanosleep, time, left));
  pass(ns_of(*time));
  return 0;
}

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (!is_simulated) return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  const std::int64_t shown_ns = ++now_ns + (clock == CLOCK_MONOTONIC ? 0 : kBeginNs);
  now->tv_sec = shown_ns / kSecondNs;
  now->tv_nsec = shown_ns % kSecondNs;
  return 0;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  if (!is_simulated) {
    using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
    static const auto real = reinterpret_cast<Wait>(::dlsym(RTLD_NEXT, "pthread_cond_clockwait"));
    return real(condition, mutex, clock, until);
  }
  // Other operations run for a part of the time.
  constexpr std::int64_t kStepNs = kSecondNs / 4;
  pthread_mutex_unlock(mutex);
  pass(kStepNs);
  pthread_mutex_lock(mutex);
  return now_ns >= ns_of(*until) ? ETIMEDOUT : 0;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (pthread_mutex_trylock(mutex) == 0) return 0;
  if (is_simulated) stand_still("a mutex");
  using Lock = int (*)(pthread_mutex_t*);
  static const auto real = reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  return real(mutex);
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  if (pthread_rwlock_tryrdlock(lock) == 0) return 0;
  stand_still("a lock for reading");
}

int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  if (pthread_rwlock_trywrlock(lock) == 0) return 0;
  stand_still("a lock for writing");
}

int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*) {
  stand_still("a condition");
}
}
