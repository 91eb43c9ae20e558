// A signal during a long write only sets a request; the process gets the signal after the write.
#include "tools/cli/interrupt.h"

#include "tests/support/catch.h"

using stfs::tools::interrupted;
using stfs::tools::InterruptGuard;

namespace {

volatile std::sig_atomic_t delivered = 0;
void count(int) {
  delivered = delivered + 1;
}

}  // namespace

TEST_CASE("interrupt guard holds a signal back and raises it at its end", "[tools][interrupt]") {
  const auto before = std::signal(SIGTERM, count);
  delivered = 0;
  {
    const InterruptGuard guard;
    CHECK_FALSE(interrupted());
    std::raise(SIGTERM);
    CHECK(interrupted());
    CHECK(delivered == 0);
  }
  CHECK(delivered == 1);
  { const InterruptGuard guard; }
  CHECK(delivered == 1);
  std::signal(SIGTERM, before);
}

TEST_CASE("interrupt guard lets an ignored signal be ignored", "[tools][interrupt]") {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const InterruptGuard guard;
    std::raise(SIGHUP);
    CHECK_FALSE(interrupted());
  }
  std::signal(SIGHUP, before);
}
