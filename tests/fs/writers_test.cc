// Tests which processes are writers of pending bytes.
#include "fs/write/writers.h"

#include <unistd.h>

#include <thread>

#include "tests/support/catch.h"
#include "tests/support/child_process.h"

using namespace stfs;
using stfs::test::ChildProcess;

TEST_CASE("a process is known by any of its threads, whatever the lock owner", "[fs][writers]") {
  const ChildProcess other(ChildProcess::Fate::Lives);
  Writers writers;
  CHECK(writers.empty());
  std::thread([&] { writers.note({7, ::gettid()}); }).join();
  CHECK_FALSE(writers.empty());
  CHECK(writers.contains(0, ::getpid()));
  CHECK(writers.contains(8, ::getpid()));  // exec may change the owner
  CHECK_FALSE(writers.contains(7, other.pid()));
}

TEST_CASE("where the kernel does not say the thread, the lock owner tells", "[fs][writers]") {
  Writers writers;
  writers.note({7, 0});
  CHECK(writers.contains(7, 0));
  CHECK(writers.contains(7, ::getpid()));
  CHECK_FALSE(writers.contains(8, 0));
  CHECK_FALSE(writers.contains(0, 0));
}

TEST_CASE("a caller without a name is nobody that can be found again", "[fs][writers]") {
  Writers writers;
  writers.note({});
  CHECK(writers.has_unnamed());
  CHECK_FALSE(writers.empty());
  CHECK_FALSE(writers.contains(0, 0));
  writers.clear();
  CHECK(writers.empty());
}

TEST_CASE("another writer lives until it is gone, and one that cannot be seen may live", "[fs][writers]") {
  ChildProcess other(ChildProcess::Fate::Lives);
  Writers writers;
  writers.note({1, ::getpid()});
  CHECK_FALSE(writers.others_live(1, ::getpid()));
  writers.note({2, other.pid()});
  CHECK(writers.others_live(1, ::getpid()));
  other.end();
  CHECK_FALSE(writers.others_live(1, ::getpid()));
  writers.note({3, 0});
  CHECK(writers.others_live(1, ::getpid()));
}

TEST_CASE("a writer that a signal has ended is told", "[fs][writers]") {
  const ChildProcess exited(ChildProcess::Fate::Exits);
  const ChildProcess killed(ChildProcess::Fate::IsKilled);
  Writers writers;
  writers.note({1, ::getpid()});
  writers.note({2, exited.pid()});
  CHECK_FALSE(writers.is_any_killed());
  writers.note({3, killed.pid()});
  CHECK(writers.is_any_killed());
}
