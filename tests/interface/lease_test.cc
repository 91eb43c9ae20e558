// Runs the leases of c_lease.c, with a server on a thread of this test.
#include <string>
#include <thread>

#include "tests/interface/c_program.h"
#include "tests/support/catch.h"
#include "tests/support/running_server.h"
#include "tests/support/served.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;

namespace {

void end_server(void* server) {
  static_cast<test::RunningServer*>(server)->end();
}

}  // namespace

TEST_CASE("interface leases what a server keeps", "[interface][serve]") {
  const test::TemporaryDirectory directory;
  test::RunningServer server(directory / "s");
  const serve::Generation first = test::generation_of(test::resident("hello"), 1);
  server.publish(test::served(first));
  std::thread changes([&] {
    test::eventually([&] { return server.leases() == 1; });
    server.publish(test::served(test::with_other_a(first, "again"), "000042"));
  });
  const char* wrong = leases_what_a_server_keeps((directory / "s").c_str(), end_server, &server);
  changes.join();
  INFO((wrong == nullptr ? "nothing is wrong" : wrong));
  CHECK(wrong == nullptr);
}
