// After each test case, lists the faults that it has passed by, in a line of STFS_MUTANTS_LOG:
// `SECONDS RESULT NUMBERS NAME`.
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // for version 2, which has listeners only then

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "mutation_switch.h"
#include "tests/support/catch.h"

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
const std::string& name_of_case(const Catch::TestCaseStats& stats) {
  return stats.testInfo->name;
}
#else
using Listener = Catch::TestEventListenerBase;
const std::string& name_of_case(const Catch::TestCaseStats& stats) {
  return stats.testInfo.name;
}
#endif

class SeenListener : public Listener {
 public:
  using Listener::Listener;

  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    Listener::testCaseStarting(info);
    begin_ = std::chrono::steady_clock::now();
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    Listener::testCaseEnded(stats);
    const char* path = std::getenv("STFS_MUTANTS_LOG");
    const stfs_mutation::Seen& seen = stfs_mutation::the_seen;
    if (path == nullptr || seen.bytes == nullptr) return;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
    std::ofstream log(path, std::ios::app);
    log << seconds.count() << ' ' << (stats.totals.testCases.allOk() ? "passed" : "failed") << ' ';
    for (std::size_t number = 1; number < seen.size_bytes; ++number) {
      if (__atomic_exchange_n(seen.bytes + number, 0, __ATOMIC_RELAXED) != 0) log << number << ',';
    }
    log << ' ' << name_of_case(stats) << '\n';
  }

 private:
  std::chrono::steady_clock::time_point begin_;
};

CATCH_REGISTER_LISTENER(SeenListener)

}  // namespace
