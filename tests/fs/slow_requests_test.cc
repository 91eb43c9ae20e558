// fs/kernel/slow_requests.h: requests that wait never hold all of the session's threads.
#include "fs/kernel/slow_requests.h"

#include <future>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

/// Works that wait until they may go on, and tell which thread runs them.
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

}  // namespace

TEST_CASE("half of the session's threads may wait; further requests run elsewhere", "[fs][slow_requests]") {
  Waiting waiting;
  SlowRequests slow(4);
  std::vector<std::promise<std::thread::id>> begun(40);
  std::vector<std::thread> session;
  std::vector<std::thread::id> servers;
  for (std::size_t at = 0; at < 2; ++at) {
    session.emplace_back([&, at] {
      const auto work = waiting.work(begun[at]);
      slow.run(work, [&] { return work; });
    });
    CHECK(begun[at].get_future().get() == session.back().get_id());
  }
  for (std::size_t at = 2; at < begun.size(); ++at) {
    const auto work = waiting.work(begun[at]);
    slow.run(work, [&] { return work; });  // returns: this thread could serve the next request
    CHECK(begun[at].get_future().get() != std::this_thread::get_id());
  }
  waiting.open.set_value();
  for (std::thread& thread : session) thread.join();
  // They have gone: a request may wait here again.
  std::thread::id here;
  const auto work = [&] { here = std::this_thread::get_id(); };
  slow.run(work, [&] { return work; });
  CHECK(here == std::this_thread::get_id());
}

TEST_CASE("stop works off what is queued, and later requests run at once", "[fs][slow_requests]") {
  std::atomic<int> done = 0;
  SlowRequests slow(0);
  const auto work = [&] { ++done; };
  for (int at = 0; at < 1000; ++at) slow.run(work, [&] { return work; });
  slow.stop();
  CHECK(done == 1000);
  slow.run(work, [&] { return work; });
  CHECK(done == 1001);
}
