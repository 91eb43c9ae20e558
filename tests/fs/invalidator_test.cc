// Tests the queue of invalidations. tests/mount tests their effect in the kernel. Here nothing is stale, so
// no session is needed.
#include "fs/kernel/invalidator.h"

#include <atomic>
#include <chrono>
#include <future>
#include <new>
#include <thread>
#include <vector>

#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"

using namespace stfs;

namespace {

const Invalidator::VisitCached kEach = [](const Stale&, const Invalidator::Visit&) {};

}  // namespace

TEST_CASE("work is done in the order in which it came, on the invalidator's thread", "[fs][invalidator]") {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  {
    Invalidator invalidator(nullptr, kEach);
    invalidator.start();
    for (int at = 0; at < 100; ++at) {
      invalidator.run([&, at] {
        order.push_back(at);
        threads.push_back(std::this_thread::get_id());
      });
    }
  }
  REQUIRE(order.size() == 100);
  for (int at = 0; at < 100; ++at) CHECK(order[static_cast<std::size_t>(at)] == at);
  CHECK(threads.front() == threads.back());
  CHECK(threads.front() != std::this_thread::get_id());
}

TEST_CASE("a job that throws stops no job behind it", "[fs][invalidator]") {
  std::atomic<bool> is_done = false;
  {
    Invalidator invalidator(nullptr, kEach);
    invalidator.start();
    invalidator.run([] { throw std::bad_alloc(); });
    invalidator.run([&] { is_done = true; });
  }
  CHECK(is_done);
}

TEST_CASE("stop works off what is queued: every request gets its answer", "[fs][invalidator]") {
  std::atomic<int> answered = 0;
  Invalidator invalidator(nullptr, kEach);
  for (int at = 0; at < 50; ++at) invalidator.forget(Stale{}, [&] { ++answered; });
  CHECK(answered == 0);
  invalidator.start();
  invalidator.stop();
  CHECK(answered == 50);
  invalidator.stop();
}

TEST_CASE("work may queue more work", "[fs][invalidator]") {
  std::atomic<int> done = 0;
  Invalidator invalidator(nullptr, kEach);
  invalidator.start();
  invalidator.run([&] {
    ++done;
    invalidator.run([&] { ++done; });
  });
  invalidator.stop();
  CHECK(done == 2);
}

TEST_CASE("many threads may queue at once", "[fs][invalidator]") {
  int answered = 0;  // touched by the invalidator's thread alone
  {
    Invalidator invalidator(nullptr, kEach);
    invalidator.start();
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        for (int at = 0; at < 500; ++at) invalidator.forget(Stale{}, [&] { ++answered; });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(answered == 2000);
}

TEST_CASE("an invalidator that was never started stops, and calls nothing that was queued",
          "[fs][invalidator]") {
  std::atomic<int> done = 0;
  {
    Invalidator invalidator(nullptr, kEach);
    invalidator.run([&] { ++done; });
    invalidator.stop();
    invalidator.stop();
  }
  CHECK(done == 0);
}

TEST_CASE("what comes after the end is done at once: somebody may be waiting for it", "[fs][invalidator]") {
  Invalidator invalidator(nullptr, kEach);
  invalidator.start();
  REQUIRE(invalidator.finish_within(std::chrono::seconds(20)));
  int done = 0;
  invalidator.run([&] { ++done; });
  CHECK(done == 1);
}

TEST_CASE(
    "an attribute that is stale is told at once only where nothing is queued: that may be about the same "
    "bytes",
    "[fs][invalidator]") {
  Invalidator invalidator(nullptr, kEach);
  const Stale attributes = Stale::one(2, Stale::What::Attributes);
  int answered = 0;
  int answered_within = -1;
  invalidator.forget(attributes, [&] { ++answered; });
  CHECK(answered == 1);
  invalidator.run([&] {
    invalidator.forget(attributes, [&] { ++answered; });
    answered_within = answered;
  });
  invalidator.forget(attributes, [&] { ++answered; });
  CHECK(answered == 1);
  while (invalidator.do_next()) {
  }
  CHECK(answered_within == 1);
  CHECK(answered == 3);
}

TEST_CASE("a job that takes long is no directory that a program holds", "[fs][invalidator]") {
  std::promise<void> answer;
  Invalidator invalidator(nullptr, kEach);
  invalidator.start();
  invalidator.run_after_names([&, held = answer.get_future().share()] { held.wait(); });
  const test::CapturedStderr captured;
  invalidator.wait_for_names();  // gives up after kPatience
  answer.set_value();
  invalidator.stop();
  CHECK(captured.text().empty());
}
