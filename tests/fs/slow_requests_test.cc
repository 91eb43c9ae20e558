// fs/kernel/slow_requests.h: requests that wait never hold all threads of the session. Users take turns.
#include "fs/kernel/slow_requests.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

/// Makes work that waits until it may continue, and that notes the thread that runs it.
struct Waiting {
  std::function<void()> work(std::promise<std::thread::id>& begun) {
    return [this, &begun] {
      begun.set_value(std::this_thread::get_id());
      go_on.wait();
    };
  }
  std::promise<void> open;
  std::shared_future<void> go_on = open.get_future();
};

constexpr uid_t kMallory = 1001;
constexpr uid_t kAlice = 1002;

/// Requests of users that wait until they may continue. Each notes its user when it begins.
struct Crowd {
  void ask(uid_t user, const void* id = nullptr) {
    slow.run_elsewhere({.user = user,
                        .work =
                            [this, user] {
                              {
                                const std::scoped_lock lock(mutex);
                                begun.push_back(user);
                              }
                              has_begun.notify_all();
                              waiting.go_on.wait();
                            },
                        .id = id});
  }
  void ask(uid_t user, int times) {
    for (int at = 0; at < times; ++at) ask(user);
  }
  std::size_t count(uid_t user) {
    const std::scoped_lock lock(mutex);
    return static_cast<std::size_t>(std::ranges::count(begun, user));
  }
  void wait_for(uid_t user, std::size_t times) {
    std::unique_lock lock(mutex);
    has_begun.wait(lock,
                   [&] { return std::ranges::count(begun, user) >= static_cast<std::ptrdiff_t>(times); });
  }

  explicit Crowd(std::size_t threads) : slow(0, threads) {}
  ~Crowd() { end(); }
  void end() {
    if (!std::exchange(is_open, true)) waiting.open.set_value();
    slow.stop();
  }
  Waiting waiting;
  bool is_open = false;
  std::mutex mutex;
  std::condition_variable has_begun;
  std::vector<uid_t> begun;
  SlowRequests slow;
};

}  // namespace

TEST_CASE("half of the session's threads may wait; further requests run elsewhere", "[fs][slow_requests]") {
  Waiting waiting;
  SlowRequests slow(2, 80);
  std::vector<std::promise<std::thread::id>> begun(40);
  std::vector<std::thread> session;
  std::vector<std::thread::id> servers;
  for (std::size_t at = 0; at < 2; ++at) {
    session.emplace_back([&, at] {
      const auto work = waiting.work(begun[at]);
      slow.run(kAlice, work, [&] { return work; });
    });
    CHECK(begun[at].get_future().get() == session.back().get_id());
  }
  for (std::size_t at = 2; at < begun.size(); ++at) {
    const auto work = waiting.work(begun[at]);
    slow.run(kAlice, work, [&] { return work; });  // returns: this thread could serve the next request
    CHECK(begun[at].get_future().get() != std::this_thread::get_id());
  }
  waiting.open.set_value();
  for (std::thread& thread : session) thread.join();
  // The waiting requests have ended, so a request may wait on this thread again.
  std::thread::id here;
  const auto work = [&] { here = std::this_thread::get_id(); };
  slow.run(kAlice, work, [&] { return work; });
  CHECK(here == std::this_thread::get_id());
}

TEST_CASE("stop works off what is queued, and later requests run at once", "[fs][slow_requests]") {
  std::atomic<int> done = 0;
  SlowRequests slow(0, 4);
  const auto work = [&] { ++done; };
  for (int at = 0; at < 1000; ++at) slow.run(kAlice, work, [&] { return work; });
  slow.stop();
  CHECK(done == 1000);
  slow.run(kAlice, work, [&] { return work; });
  CHECK(done == 1001);
}

TEST_CASE("a user's request begins while all of another user's thousand wait", "[fs][slow_requests]") {
  Crowd crowd(8);
  crowd.ask(kMallory, 1000);
  crowd.wait_for(kMallory, 4);
  crowd.ask(kAlice);
  crowd.wait_for(kAlice, 1);
  CHECK(crowd.count(kMallory) == 4);
  crowd.end();
  CHECK(crowd.count(kMallory) == 1000);
}

TEST_CASE("each further user gets fewer threads, and the next one finds one", "[fs][slow_requests]") {
  Crowd crowd(16);
  const std::vector<std::size_t> shares = {8, 4, 2, 1, 1};
  for (std::size_t at = 0; at < shares.size(); ++at) {
    crowd.ask(static_cast<uid_t>(at), 100);
    crowd.wait_for(static_cast<uid_t>(at), shares[at]);
  }
  for (std::size_t at = 0; at < shares.size(); ++at) CHECK(crowd.count(static_cast<uid_t>(at)) == shares[at]);
  crowd.end();
  for (std::size_t at = 0; at < shares.size(); ++at) CHECK(crowd.count(static_cast<uid_t>(at)) == 100);
}

TEST_CASE("users whose requests are in the queue take turns", "[fs][slow_requests]") {
  SlowRequests slow(0, 1);
  Waiting waiting;
  std::promise<std::thread::id> begun;
  slow.run_elsewhere({.user = kMallory, .work = waiting.work(begun)});
  begun.get_future().get();
  std::vector<uid_t> order;
  const auto ask = [&](uid_t user, int times) {
    for (int at = 0; at < times; ++at)
      slow.run_elsewhere({.user = user, .work = [&order, user] { order.push_back(user); }});
  };
  ask(kMallory, 1000);
  ask(kAlice, 2);
  ask(0, 2);
  waiting.open.set_value();
  slow.stop();
  REQUIRE(order.size() == 1004);
  order.resize(7);
  CHECK(order == std::vector<uid_t>{kAlice, 0, kMallory, kAlice, 0, kMallory, kMallory});
}

TEST_CASE("a request that is taken back does not run, and makes room for no other", "[fs][slow_requests]") {
  Crowd crowd(2);
  const int first = 0;
  const int second = 0;
  crowd.ask(kMallory, &first);
  crowd.wait_for(kMallory, 1);
  CHECK_FALSE(crowd.slow.take_back(kMallory, &first));  // it runs
  crowd.ask(kMallory, &second);
  CHECK_FALSE(crowd.slow.take_back(kAlice, &second));
  CHECK(crowd.slow.take_back(kMallory, &second));
  CHECK_FALSE(crowd.slow.take_back(kMallory, &second));
  crowd.end();
  CHECK(crowd.count(kMallory) == 1);
}

TEST_CASE("a request that is given up before it is in the queue runs at once", "[fs][slow_requests]") {
  Crowd crowd(2);
  crowd.ask(kMallory, 10);
  crowd.wait_for(kMallory, 1);
  std::thread::id here;
  crowd.slow.run_elsewhere({.user = kMallory,
                            .work = [&] { here = std::this_thread::get_id(); },
                            .is_given_up = [] { return true; }});
  CHECK(here == std::this_thread::get_id());
}

TEST_CASE("requests of many users that come and are taken back at the same time all end",
          "[fs][slow_requests]") {
  std::atomic<int> done = 0;
  std::atomic<int> taken = 0;
  constexpr int kEach = 2000;
  constexpr int kThreads = 4;
  {
    SlowRequests slow(0, 6);
    std::vector<std::thread> session;
    for (int thread = 0; thread < kThreads; ++thread) {
      session.emplace_back([&, thread] {
        for (int at = 0; at < kEach; ++at) {
          const auto user = static_cast<uid_t>((thread + at) % 3);
          const auto id = std::make_unique<int>();
          slow.run_elsewhere({.user = user, .work = [&] { ++done; }, .id = id.get()});
          if (at % 2 == 0 && slow.take_back(user, id.get())) ++taken;
        }
      });
    }
    for (std::thread& thread : session) thread.join();
  }
  CHECK(done + taken == kEach * kThreads);
}
