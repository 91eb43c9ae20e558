// The memory of a device is freed in order, without a wait of the caller, and before the process ends.
#include "tools/device/later_releases.h"

#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <vector>

#include "tests/support/catch.h"

using stfs::device::LaterReleases;

TEST_CASE("a release runs later, and the caller does not wait for it", "[tools][upload]") {
  std::promise<void> device;
  std::vector<int> order;
  {
    LaterReleases releases;
    releases.add([&, idle = device.get_future().share()] {
      idle.wait();
      order.push_back(1);
    });
    releases.add([&] { order.push_back(2); });
    CHECK(order.empty());
    device.set_value();
    releases.wait();
    CHECK(order == std::vector{1, 2});
    releases.add([&] { order.push_back(3); });
  }
  CHECK(order == std::vector{1, 2, 3});
}

TEST_CASE("a forked child waits for no release of its parent", "[tools][upload]") {
  LaterReleases releases;
  std::promise<void> device;
  releases.add([idle = device.get_future().share()] { idle.wait(); });
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    releases.wait();
    releases.~LaterReleases();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  device.set_value();
}
