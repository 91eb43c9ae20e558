// The turn to commit to a shard, and the commits that may have the turn while it is lent.
#include "fs/write/commit_turn.h"

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

constexpr ByteRange kLentBlocks{0, 1 << 20};
constexpr ByteRange kElsewhere{1 << 20, 4096};
constexpr ByteRange kShared{(1 << 20) - 4096, 4096};

/// A holder that lends its turn until the test ends the loan.
struct LentTurn {
  LentTurn()
      : lender(std::async(std::launch::async, [this] {
          turn.lock();
          turn.lend(kLentBlocks, [this] {
            is_lent.set_value();
            goes_on.get_future().wait();
          });
          log += "large,";
          turn.unlock();
        })) {
    is_lent.get_future().wait();
  }
  /// Starts a thread that takes the turn by `lock` and notes its name.
  template <class Lock>
  std::future<void> thread(std::string name, const Lock& lock) {
    return std::async(std::launch::async, [this, name, lock] {
      lock();
      log += name + ",";
      turn.unlock();
    });
  }
  std::future<void> beside(const std::string& name, ByteRange blocks) {
    return thread(name, [this, blocks] { turn.lock_beside(blocks); });
  }

  CommitTurn turn;
  std::promise<void> is_lent;
  std::promise<void> goes_on;
  std::string log;  // guarded by the turn
  std::future<void> lender;
};

}  // namespace

TEST_CASE("a turn that is lent lets in threads with other blocks, and nobody else", "[fs][commit_turn]") {
  LentTurn lent;
  auto edit = lent.thread("edit", [&] { lent.turn.lock(); });
  auto same = lent.beside("same", kShared);
  for (int round = 0; round < 3; ++round) lent.beside("small", kElsewhere).get();
  lent.beside("nothing", {}).get();
  CHECK_FALSE(lent.turn.try_lock());
  CHECK(lent.turn.lock_beside(kElsewhere));
  lent.log += "last,";
  lent.goes_on.set_value();
  CHECK(lent.log == "small,small,small,nothing,last,");
  lent.turn.unlock();
  for (auto* waiting : {&lent.lender, &edit, &same}) waiting->get();
  CHECK(lent.log.starts_with("small,small,small,nothing,last,large,"));
  CHECK(lent.log.size() == std::string("small,small,small,nothing,last,large,edit,same,").size());
  CHECK_FALSE(lent.turn.lock_beside(kShared));
  lent.turn.unlock();
}

TEST_CASE("a turn that is lent without work comes back when those that waited have had it",
          "[fs][commit_turn]") {
  CommitTurn turn;
  turn.lock();
  CHECK_FALSE(turn.lend(kLentBlocks, {}));
  std::atomic<int> rounds = 0;
  std::atomic<bool> ends = false;
  std::vector<std::future<void>> threads;
  for (int count = 0; count < 3; ++count) {
    threads.push_back(std::async(std::launch::async, [&] {
      while (!ends) {
        turn.lock_beside(kElsewhere);
        ++rounds;
        turn.unlock();
      }
    }));
  }
  // These commits never stop, and the turn comes back each time.
  while (rounds < 100) turn.lend(kLentBlocks, {});
  ends = true;
  turn.unlock();
}
