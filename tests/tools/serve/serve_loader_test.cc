// Uploads beside the server: the first upload, uploads after a change, and failed uploads.
#include "tools/serve/serve_loader.h"

#include <poll.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/running_server.h"
#include "tests/support/served.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::serve;
using test::eventually;

namespace {

using std::chrono::milliseconds;
using Load = std::function<Result<Generation>(Work& work, const Generation* before)>;

LoaderOptions quick() {
  LoaderOptions options;
  options.sources = {"/m"};
  options.interval = milliseconds(5);
  options.max_pause = milliseconds(20);
  options.patience = milliseconds(200);
  return options;
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

Generation sample(const Generation* before, const std::string& content = "x") {
  return test::generation_of(test::resident(content), before == nullptr ? 1 : before->number + 1);
}

/// Archives that change whenever the test says so.
struct Changing {
  std::atomic<int> loads = 0;
  std::atomic<bool> is_changed = false;
  std::vector<std::filesystem::path> watched = {};

  LoadSteps steps(Load load) {
    return {std::move(load),
            [this](const Generation&) -> Result<void> {
              if (is_changed) return stale();
              return {};
            },
            [this](const Generation&) { return watched; }};
  }
};

}  // namespace

TEST_CASE("the loader uploads once, and again whenever the archives have changed", "[tools][serve]") {
  Changing archives;
  std::atomic<std::uint64_t> number_before = 99;
  ServeLoader loader(archives.steps([&](Work&, const Generation* before) -> Result<Generation> {
    archives.is_changed = false;
    number_before = before == nullptr ? 0 : before->number;
    return sample(before, std::to_string(++archives.loads));
  }),
                     quick());
  const auto first = next(loader);
  REQUIRE(first);
  CHECK(first->model->generation() == 1);
  CHECK(first->model->tensor_count() == 2);
  CHECK(number_before == 0);
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(archives.loads == 1);
  CHECK_FALSE(loader.take());
  archives.is_changed = true;
  const auto second = next(loader);
  REQUIRE(second);
  CHECK(second->model->generation() == 2);
  CHECK(archives.loads == 2);
  CHECK(number_before == 1);
}

TEST_CASE("a change of a watched file is noticed long before the interval is over", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const std::string file = directory.write("m.safetensors", "old");
  Changing archives;
  archives.watched = {file};
  LoaderOptions options = quick();
  options.interval = std::chrono::minutes(10);
  ServeLoader loader(archives.steps([&](Work&, const Generation* before) -> Result<Generation> {
    archives.is_changed = false;
    return sample(before);
  }),
                     options);
  REQUIRE(next(loader));
  std::this_thread::sleep_for(milliseconds(20));
  archives.is_changed = true;
  std::ofstream(file) << "new";
  CHECK(next(loader)->model->generation() == 2);
}

TEST_CASE("a loader that does not follow uploads once", "[tools][serve]") {
  Changing archives;
  LoaderOptions options = quick();
  options.follows = false;
  ServeLoader loader(archives.steps([&](Work&, const Generation* before) -> Result<Generation> {
    ++archives.loads;
    return sample(before);
  }),
                     options);
  REQUIRE(next(loader));
  archives.is_changed = true;
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(archives.loads == 1);
  CHECK_FALSE(loader.take());
}

TEST_CASE("archives that others are changing are waited for, and told only if that lasts", "[tools][serve]") {
  Changing archives;
  std::atomic<int> unsettled = 3;
  const int errno_value = GENERATE(EAGAIN, ESTALE);
  LoaderOptions options = quick();
  options.patience = std::chrono::seconds(1);
  ServeLoader loader(archives.steps([&](Work&, const Generation* before) -> Result<Generation> {
    if (unsettled-- > 0) return fail(ErrorCode::Busy, errno_value, "m: is being changed");
    archives.is_changed = false;
    return sample(before);
  }),
                     options);
  REQUIRE(next(loader));  // the first upload also waits
  unsettled = 3;
  archives.is_changed = true;
  const auto second = next(loader);
  REQUIRE(second);
  CHECK(second->model->generation() == 2);
  unsettled = 1'000'000;
  archives.is_changed = true;
  const auto stuck = next(loader);
  REQUIRE_FALSE(stuck);
  CHECK(stuck.error().errno_value == errno_value);
  unsettled = 0;
  CHECK(eventually([&] {
    const auto outcome = loader.take();
    return outcome && *outcome && (*outcome)->model->generation() == 3;
  }));
}

TEST_CASE("a lost device is told once and ends the loader", "[tools][serve]") {
  Changing archives;
  ServeLoader loader(archives.steps([&](Work&, const Generation* before) -> Result<Generation> {
    if (++archives.loads > 1)
      return fail(ErrorCode::System, ENOTRECOVERABLE, "cuda:0: copy: an illegal address");
    archives.is_changed = false;
    return sample(before);
  }),
                     quick());
  REQUIRE(next(loader));
  archives.is_changed = true;
  const auto lost = next(loader);
  REQUIRE_FALSE(lost);
  CHECK(device::is_device_lost(lost.error()));
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(archives.loads == 2);
  CHECK_FALSE(loader.take());
}

TEST_CASE("a failed upload is told and tried again, ever more seldom", "[tools][serve]") {
  Changing archives;
  LoaderOptions options = quick();
  options.interval = milliseconds(10);
  options.max_pause = milliseconds(80);
  std::array<std::chrono::steady_clock::time_point, 5> loaded_at;
  ServeLoader loader(archives.steps([&](Work&, const Generation* before) -> Result<Generation> {
    const int load = ++archives.loads;
    loaded_at.at(static_cast<std::size_t>(load - 1)) = std::chrono::steady_clock::now();
    if (load > 1 && load < 5) return fail(ErrorCode::OutOfMemory, ENOMEM, "too large");
    archives.is_changed = false;
    return sample(before);
  }),
                     options);
  REQUIRE(next(loader));
  archives.is_changed = true;
  for (int at = 0; at < 3; ++at) {
    const auto failed = next(loader);
    REQUIRE_FALSE(failed);
    CHECK(failed.error().errno_value == ENOMEM);
  }
  const auto recovered = next(loader);
  REQUIRE(recovered);
  CHECK(loaded_at[4] - loaded_at[3] > milliseconds(40));  // 10, then 20, 40, 80
  CHECK(recovered->model->generation() == 2);
}

TEST_CASE("a failed upload is not tried again because of other files in the directory", "[tools][serve]") {
  const test::TemporaryDirectory directory;
  const std::string file = directory.write("m.safetensors", "old");
  Changing archives;
  archives.watched = {file};
  std::atomic<bool> is_whole = true;
  LoaderOptions options = quick();
  options.interval = options.max_pause = std::chrono::minutes(10);
  ServeLoader loader(archives.steps([&](Work&, const Generation* before) -> Result<Generation> {
    archives.is_changed = true;
    if (!is_whole.exchange(false)) return fail(ErrorCode::System, EIO, "m: is damaged");
    return sample(before);
  }),
                     options);
  REQUIRE(next(loader));
  CHECK_FALSE(next(loader));
  for (int number = 0; number < 100; ++number) directory.write("other" + std::to_string(number), "");
  is_whole = true;
  REQUIRE(::chmod(file.c_str(), 0600) == 0);  // a single event of the watched file
  CHECK(next(loader));
}

TEST_CASE("where the first upload fails there is no other", "[tools][serve]") {
  Changing archives;
  ServeLoader loader(archives.steps([&](Work&, const Generation*) -> Result<Generation> {
    ++archives.loads;
    return fail(ErrorCode::NotFound, ENOENT, "m: no such file");
  }),
                     quick());
  CHECK(next(loader).error().errno_value == ENOENT);
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(archives.loads == 1);
}

TEST_CASE("the end of the loader cancels an upload", "[tools][serve]") {
  const auto before = test::open_descriptors();
  std::atomic<bool> has_begun = false;
  {
    Changing archives;
    const ServeLoader loader(archives.steps([&](Work& work, const Generation*) -> Result<Generation> {
      has_begun = true;
      while (!work.is_stopped()) std::this_thread::sleep_for(milliseconds(1));
      return fail(ErrorCode::System, ECANCELED, "cancelled");
    }),
                             quick());
    REQUIRE(eventually([&] { return has_begun.load(); }));
  }
  CHECK(test::open_descriptors() == before);
}
