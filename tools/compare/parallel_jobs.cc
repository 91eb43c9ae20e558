// Another thread runs the jobs, with those that it starts; this one watches.
#include "tools/compare/parallel_jobs.h"

#include <chrono>
#include <future>
#include <system_error>

#include "core/base/parallel.h"

namespace stfs::tools {
namespace {

constexpr std::chrono::milliseconds kLookEvery{50};

}  // namespace

Result<bool> run_jobs(std::size_t count, std::uint64_t threads, const Watch& watch, const Job& job) {
  JobStatus status;
  const auto work = [&] {
    const unsigned most = worker_count(count, threads);
    return run_parallel(count, most, [&](std::size_t number, unsigned) -> Result<void> {
      auto done = status.is_stopped() ? Result<void>() : job(number, status);
      if (!done) status.stop();
      return done;
    });
  };
  Result<void> done;
  try {
    auto all = std::async(std::launch::async, work);
    while (all.wait_for(kLookEvery) != std::future_status::ready) {
      if (!watch(status.done_bytes())) status.stop();
    }
    done = all.get();
  } catch (const std::system_error&) {  // no thread
    done = work();
  }
  if (!done) return pass_on(std::move(done));
  return watch(status.done_bytes()) && !status.is_stopped();
}

}  // namespace stfs::tools
