// What /proc tells of a process that closes a file.
#include "fs/process.h"

#include <thread>

#include "tests/support/catch.h"
#include "tests/support/child_process.h"

using namespace stfs;
using stfs::test::ChildProcess;

TEST_CASE("a process that a signal has killed is told from one that exits", "[fs][process]") {
  const ChildProcess killed(ChildProcess::Fate::IsKilled);
  const ChildProcess exited(ChildProcess::Fate::Exits);
  const ChildProcess alive(ChildProcess::Fate::Lives);
  CHECK(is_killed_by_signal(killed.pid()));
  CHECK_FALSE(is_killed_by_signal(exited.pid()));
  CHECK_FALSE(is_killed_by_signal(alive.pid()));
  CHECK_FALSE(is_killed_by_signal(::getpid()));
}

TEST_CASE("what is no process was not killed", "[fs][process]") {
  ChildProcess gone(ChildProcess::Fate::IsKilled);
  gone.end();
  CHECK_FALSE(is_killed_by_signal(gone.pid()));
  CHECK_FALSE(is_killed_by_signal(0));
  CHECK_FALSE(is_killed_by_signal(-1));
}

TEST_CASE("a living process lives elsewhere than another one", "[fs][process]") {
  const ChildProcess other(ChildProcess::Fate::Lives);
  CHECK(lives_elsewhere(other.pid(), ::getpid()));
  CHECK(lives_elsewhere(::getpid(), other.pid()));
}

TEST_CASE("a process does not live elsewhere than itself, its threads neither", "[fs][process]") {
  CHECK_FALSE(lives_elsewhere(::getpid(), ::getpid()));
  bool thread_is_elsewhere = true;
  bool main_is_elsewhere = true;
  std::thread([&] {
    thread_is_elsewhere = lives_elsewhere(::gettid(), ::getpid());
    main_is_elsewhere = lives_elsewhere(::getpid(), ::gettid());
  }).join();
  CHECK_FALSE(thread_is_elsewhere);
  CHECK_FALSE(main_is_elsewhere);
}

TEST_CASE("who is gone or not known lives nowhere", "[fs][process]") {
  ChildProcess gone(ChildProcess::Fate::Lives);
  gone.end();
  CHECK_FALSE(lives_elsewhere(gone.pid(), ::getpid()));
  CHECK_FALSE(lives_elsewhere(0, ::getpid()));
  CHECK_FALSE(lives_elsewhere(::getpid(), 0));
  CHECK_FALSE(lives_elsewhere(-1, ::getpid()));
}
