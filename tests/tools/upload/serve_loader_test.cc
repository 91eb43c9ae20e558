// Uploads beside the server: the first one, those after a change, and those that fail.
#include "tools/serve/serve_loader.h"

#include <poll.h>

#include <atomic>

#include "tests/support/catch.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/running_server.h"
#include "tests/support/served.h"

using namespace stfs;
using namespace stfs::upload;
using test::eventually;

namespace {

using std::chrono::milliseconds;

LoaderOptions quick() {
  return {{"/m"}, milliseconds(5), milliseconds(20)};
}

/// The next outcome; fails the test where there is none.
Result<Loaded> next(ServeLoader& loader) {
  pollfd polled{loader.descriptor(), POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 20'000) == 1);
  auto outcome = loader.take();
  REQUIRE(outcome);
  return std::move(*outcome);
}

tl::unexpected<Error> stale() {
  return fail(ErrorCode::ArchiveChanged, ESTALE, "m: was replaced");
}

}  // namespace

TEST_CASE("the loader uploads once, and again whenever the archives have changed", "[tools][serve]") {
  std::atomic<int> loads = 0;
  std::atomic<bool> is_changed = false;
  ServeLoader loader({[&](LoadProgress&) -> Result<Resident> {
                        is_changed = false;
                        return test::resident(std::to_string(++loads));
                      },
                      [&](const Plan&) -> Result<void> {
                        if (is_changed) return stale();
                        return {};
                      }},
                     quick());
  const auto first = next(loader);
  REQUIRE(first);
  CHECK(first->model->generation() == 1);
  CHECK(first->model->tensor_count() == 2);
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(loads == 1);
  CHECK_FALSE(loader.take());
  is_changed = true;
  const auto second = next(loader);
  REQUIRE(second);
  CHECK(second->model->generation() == 2);
  CHECK(loads == 2);
}

TEST_CASE("a failed upload is told and tried again, ever more seldom", "[tools][serve]") {
  std::atomic<int> loads = 0;
  std::atomic<bool> is_changed = false;
  ServeLoader loader({[&](LoadProgress&) -> Result<Resident> {
                        const int load = ++loads;
                        if (load > 1 && load < 5) return fail(ErrorCode::OutOfMemory, ENOMEM, "too large");
                        is_changed = false;
                        return test::resident("x");
                      },
                      [&](const Plan&) -> Result<void> {
                        if (is_changed) return stale();
                        return {};
                      }},
                     {{}, milliseconds(10), milliseconds(80)});
  REQUIRE(next(loader));
  is_changed = true;
  for (int at = 0; at < 3; ++at) {
    const auto failed = next(loader);
    REQUIRE_FALSE(failed);
    CHECK(failed.error().errno_value == ENOMEM);
  }
  const auto began = std::chrono::steady_clock::now();
  const auto recovered = next(loader);
  CHECK(std::chrono::steady_clock::now() - began > milliseconds(40));  // 10, then 20, 40, 80
  REQUIRE(recovered);
  CHECK(recovered->model->generation() == 2);
}

TEST_CASE("where the first upload fails there is no other", "[tools][serve]") {
  std::atomic<int> loads = 0;
  ServeLoader loader({[&](LoadProgress&) -> Result<Resident> {
                        ++loads;
                        return fail(ErrorCode::NotFound, ENOENT, "m: no such file");
                      },
                      [](const Plan&) -> Result<void> { return {}; }},
                     quick());
  CHECK(next(loader).error().errno_value == ENOENT);
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(loads == 1);
}

TEST_CASE("the end of the loader cancels an upload", "[tools][serve]") {
  const auto before = test::open_descriptors();
  std::atomic<bool> has_begun = false;
  {
    const ServeLoader loader({[&](LoadProgress& progress) -> Result<Resident> {
                                has_begun = true;
                                while (!progress.is_cancelled) std::this_thread::sleep_for(milliseconds(1));
                                return fail(ErrorCode::System, ECANCELED, "cancelled");
                              },
                              [](const Plan&) -> Result<void> { return {}; }},
                             quick());
    REQUIRE(eventually([&] { return has_begun.load(); }));
  }
  CHECK(test::open_descriptors() == before);
}
