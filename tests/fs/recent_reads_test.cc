// The tensors of the last reads: which count, for how long, and from how many threads.
#include "fs/read/recent_reads.h"

#include <thread>
#include <vector>

#include "tests/support/catch.h"

using stfs::RecentReads;
using stfs::TensorId;

namespace {

using Time = RecentReads::Time;
constexpr Time kNow{1000};

TEST_CASE("the hottest tensor is the one with the most bytes, not with the most reads", "[fs][reads]") {
  const RecentReads reads;
  CHECK(reads.hottest(5, kNow).empty());
  for (int i = 0; i < 10; ++i) reads.note(TensorId{7}, 100, kNow);
  reads.note(TensorId{0}, 2500, kNow);
  reads.note(TensorId{~std::uint32_t{0}}, 500, kNow);
  const auto all = reads.hottest(5, kNow);
  REQUIRE(all.size() == 3);
  CHECK((all[0].tensor == TensorId{0} && all[0].of_bytes == 0.625));
  CHECK((all[1].tensor == TensorId{7} && all[1].of_bytes == 0.25));
  CHECK((all[2].tensor == TensorId{~std::uint32_t{0}} && all[2].of_bytes == 0.125));
  // The shares are of all reads, also if fewer tensors are asked for.
  const auto one = reads.hottest(1, kNow);
  REQUIRE(one.size() == 1);
  CHECK((one[0].tensor == TensorId{0} && one[0].of_bytes == 0.625));
}

TEST_CASE("a read is forgotten after ten seconds, or after 512 others", "[fs][reads]") {
  const RecentReads reads;
  reads.note(TensorId{1}, 10, kNow);
  CHECK(reads.hottest(5, kNow + Time{10}).size() == 1);
  CHECK(reads.hottest(5, kNow + Time{11}).empty());
  for (std::size_t i = 1; i < RecentReads::kMostReads; ++i) reads.note(TensorId{2}, 10, kNow);
  CHECK(reads.hottest(5, kNow).size() == 2);
  reads.note(TensorId{2}, 10, kNow);
  const auto left = reads.hottest(5, kNow);
  REQUIRE(left.size() == 1);
  CHECK((left[0].tensor == TensorId{2} && left[0].of_bytes == 1));
}

TEST_CASE("each of the 512 places counts", "[fs][reads]") {
  const RecentReads reads;
  for (std::uint32_t i = 0; i < RecentReads::kMostReads; ++i) reads.note(TensorId{i}, 1 + i, kNow);
  const auto all = reads.hottest(RecentReads::kMostReads, kNow);
  REQUIRE(all.size() == RecentReads::kMostReads);
  CHECK(all.front().tensor == TensorId{RecentReads::kMostReads - 1});
  CHECK(all.back().tensor == TensorId{0});
  CHECK(RecentReads::present() > Time{0});
}

TEST_CASE("a read of nothing has no share, and one of more than 4 GiB counts as 4 GiB", "[fs][reads]") {
  const RecentReads reads;
  reads.note(TensorId{1}, 0, kNow);
  CHECK(reads.hottest(5, kNow).empty());
  reads.note(TensorId{2}, std::uint64_t{1} << 40U, kNow);
  reads.note(TensorId{3}, ~std::uint32_t{0}, kNow);
  const auto both = reads.hottest(5, kNow);
  REQUIRE(both.size() == 2);
  CHECK(both[0].of_bytes == both[1].of_bytes);
}

TEST_CASE("reads of several threads are all remembered", "[fs][reads]") {
  const RecentReads reads;
  std::vector<std::thread> threads;
  for (std::uint32_t number = 0; number < 4; ++number) {
    threads.emplace_back([&reads, number] {
      for (int i = 0; i < 100; ++i) reads.note(TensorId{number}, 1 + number, kNow);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto all = reads.hottest(5, kNow);
  REQUIRE(all.size() == 4);
  CHECK((all[0].tensor == TensorId{3} && all[0].of_bytes == 0.4));
}

}  // namespace
