#include "core/base/work.h"

#include <future>
#include <system_error>

#include "core/base/parallel.h"

namespace stfs {
namespace {

constexpr std::chrono::milliseconds kLookEvery{20};

}  // namespace

void Work::begin(std::uint64_t total_bytes) {
  done_bytes_ = 0;
  total_bytes_ = total_bytes;
  is_abandoned_ = false;
  look();
}

void Work::look() {
  if (!watch_ || is_stopped_ || std::this_thread::get_id() != thread_) return;
  looked_ = Clock::now();
  if (!watch_(done_bytes_, total_bytes_)) stop();
}

void Work::look_if_due() {
  if (Clock::now() - looked_ >= kLookEvery) look();
}

Result<void> run_watched(std::size_t count, std::uint64_t threads, Work& work,
                         const std::function<Result<void>(std::size_t index, unsigned worker)>& job) {
  const unsigned workers = worker_count(count, threads);
  const auto run = [&] {
    return run_parallel(count, workers, [&](std::size_t index, unsigned worker) -> Result<void> {
      auto done = work.goes_on() ? guard_memory([&] { return job(index, worker); }) : Result<void>();
      if (!done && !work.goes_on()) return {};  // a stopped job may fail
      if (!done) work.abandon();
      return done;
    });
  };
  Result<void> done;
  if (workers <= 1) {
    done = run();
  } else {
    try {
      auto all = std::async(std::launch::async, run);
      while (all.wait_for(kLookEvery) != std::future_status::ready) work.look();
      done = all.get();
    } catch (const std::system_error&) {  // no thread could be started
      done = run();
    }
  }
  if (done) work.look();
  return done;
}

}  // namespace stfs
