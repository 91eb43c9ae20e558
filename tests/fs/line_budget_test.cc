// A program that repeats a refused request for ever gets few lines in the log.
#include "fs/base/line_budget.h"

#include <chrono>

#include "tests/support/catch.h"

using std::chrono::seconds;
using stfs::LineBudget;

namespace {

int lines_of(LineBudget& budget, uid_t user, int requests, LineBudget::Time now) {
  int lines = 0;
  for (int request = 0; request < requests; ++request) lines += budget.take(user, now) ? 1 : 0;
  return lines;
}

}  // namespace

TEST_CASE("a loop of requests gets a limited number of lines, and a later line tells how many are missing",
          "[fs][log]") {
  LineBudget budget;
  const LineBudget::Time begin{};
  CHECK(lines_of(budget, 1, 1000, begin) == LineBudget::kMostAtOnce);
  CHECK(budget.take(1, begin + seconds(2)) == 1000 - LineBudget::kMostAtOnce);
  CHECK(lines_of(budget, 1, 1000, begin + seconds(2)) == 2 * LineBudget::kPerSecond - 1);
  CHECK(budget.take(1, begin + seconds(10)) == 1001 - 2 * LineBudget::kPerSecond);
  CHECK(budget.take(1, begin + seconds(10)).value_or(1) == 0);
}

TEST_CASE("one user's loop takes no lines from another user", "[fs][log]") {
  LineBudget budget;
  const LineBudget::Time now{};
  lines_of(budget, 1, 1000, now);
  CHECK(lines_of(budget, 2, 1000, now) == LineBudget::kMostAtOnce);
}

TEST_CASE("very many users share one budget", "[fs][log]") {
  LineBudget budget;
  const LineBudget::Time now{};
  for (uid_t user = 0; user < LineBudget::kMostUsers; ++user) CHECK(lines_of(budget, user, 1, now) == 1);
  int lines = 0;
  for (uid_t user = 1000; user < 2000; ++user) lines += lines_of(budget, user, 1, now);
  CHECK(lines == LineBudget::kMostAtOnce);
}
