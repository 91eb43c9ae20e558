// fs/write/content_lock.h: tests which holders wait for which others.
#include "fs/write/content_lock.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;
using namespace std::chrono_literals;

namespace {

constexpr ByteRange kFirst = {0, 100};
constexpr ByteRange kSecondHundred = {100, 100};

template <class Work>
std::future<void> in_background(const Work& work) {
  return std::async(std::launch::async, work);
}

void put_aside(ContentLock& lock, ByteRange range) {
  lock.lock_beside(range);
  lock.step_aside(range);
}

bool is_waiting(const std::future<void>& work) {
  return work.wait_for(20ms) == std::future_status::timeout;
}

/// Returns true if the thread sleeps, which means that it waits for something other than the processor.
bool is_asleep(pid_t thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/stat", thread));
  const std::string stat((std::istreambuf_iterator<char>(file)), {});
  return stat.substr(stat.rfind(')')).starts_with(") S");
}

}  // namespace

TEST_CASE("a write elsewhere may come while one is aside", "[fs][content_lock]") {
  ContentLock lock;
  lock.lock_beside(kFirst);
  auto second = in_background([&] {
    put_aside(lock, kSecondHundred);
    lock.rejoin(kSecondHundred);
    lock.unlock();
  });
  CHECK(is_waiting(second));  // it has not stepped aside yet
  lock.step_aside(kFirst);
  second.get();
  lock.rejoin(kFirst);
  lock.unlock();
}

TEST_CASE("a write to the same place waits for the one that is aside", "[fs][content_lock]") {
  ContentLock lock;
  put_aside(lock, kFirst);
  auto second = in_background([&] {
    lock.lock_beside({99, 2});
    lock.unlock();
  });
  CHECK(is_waiting(second));
  lock.rejoin(kFirst);
  CHECK(is_waiting(second));
  lock.unlock();
  second.get();
}

TEST_CASE("who is alone has waited for all that are aside, and keeps further ones out",
          "[fs][content_lock]") {
  ContentLock lock;
  put_aside(lock, kFirst);
  std::atomic<bool> is_alone = false;
  std::atomic<pid_t> first = 0;
  auto alone = in_background([&] {
    first = ::gettid();
    lock.lock();
    is_alone = true;
    lock.unlock();
  });
  while (first == 0 || !is_asleep(first)) std::this_thread::sleep_for(1ms);
  CHECK(is_waiting(alone));
  // A write that comes later waits, because a steady stream of writes would otherwise block the lock for
  // ever.
  auto next = in_background([&] {
    lock.lock_beside(kSecondHundred);
    CHECK(is_alone);
    lock.unlock();
  });
  CHECK(is_waiting(next));
  lock.rejoin(kFirst);
  CHECK(is_waiting(alone));
  lock.unlock();
  alone.get();
  next.get();
}

TEST_CASE("only so many are aside at a time", "[fs][content_lock]") {
  ContentLock lock;
  const auto place = [](std::uint64_t number) { return ByteRange{number * 10, 10}; };
  for (std::uint64_t number = 0; number < 4; ++number) {
    put_aside(lock, place(number));
  }
  auto fifth = in_background([&] {
    lock.lock_beside(place(4));
    lock.unlock();
  });
  CHECK(is_waiting(fifth));
  lock.rejoin(place(1));
  lock.unlock();
  fifth.get();
}

TEST_CASE("a write that comes back waits for who holds the lock", "[fs][content_lock]") {
  ContentLock lock;
  put_aside(lock, kFirst);
  lock.lock_beside(kSecondHundred);
  auto back = in_background([&] {
    lock.rejoin(kFirst);
    lock.unlock();
  });
  CHECK(is_waiting(back));
  lock.unlock();
  back.get();
}

TEST_CASE("many threads beside and alone: nobody is let in wrongly, and all come through",
          "[fs][content_lock]") {
  ContentLock lock;
  constexpr std::size_t kPlaces = 4;
  int alone = 0;                      // guarded by the lock
  std::atomic<int> aside[kPlaces]{};  // writes to one place at a time
  std::atomic<unsigned> wrong = 0;
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 2 * kPlaces; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t times = 0; times < 2000; ++times) {
        if (times % 16 == thread) {
          lock.lock();
          ++alone;
          for (const auto& place : aside) wrong += place != 0 ? 1 : 0;
          lock.unlock();
          continue;
        }
        const std::size_t place = (thread + times) % kPlaces;
        const ByteRange range = {place * 10, 10};
        lock.lock_beside(range);
        ++alone;
        lock.step_aside(range);
        wrong += aside[place]++ != 0 ? 1 : 0;
        --aside[place];
        lock.rejoin(range);
        ++alone;
        lock.unlock();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(alone == static_cast<int>(2 * kPlaces * (2000 - 125) * 2 + 2 * kPlaces * 125));
}

TEST_CASE("readers come in beside a holder that admits them, and it waits until they are out",
          "[fs][content_lock]") {
  ContentLock lock;
  lock.lock();
  std::promise<void> is_in;
  std::promise<void> leave;
  auto reader = in_background([&] {
    const ContentLock::Reading reading(lock);
    is_in.set_value();
    leave.get_future().wait();
  });
  CHECK(is_waiting(reader));
  lock.admit_readers();
  is_in.get_future().wait();
  { const ContentLock::Reading another(lock); }
  auto sending = in_background([&] { lock.send_readers_out(); });
  CHECK(is_waiting(sending));
  auto late = in_background([&] { const ContentLock::Reading reading(lock); });
  CHECK(is_waiting(late));
  leave.set_value();
  sending.get();
  CHECK(is_waiting(late));
  lock.unlock();
  late.get();
}

TEST_CASE("without a holder a reader is alone", "[fs][content_lock]") {
  ContentLock lock;
  auto writer = std::make_optional<ContentLock::Reading>(lock);
  auto other = in_background([&] {
    lock.lock();
    lock.unlock();
  });
  CHECK(is_waiting(other));
  writer.reset();
  other.get();
}
