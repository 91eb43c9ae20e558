// core/remote/tensor_plan.h: what a read of a remote archive fetches.
#include "core/remote/tensor_plan.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

constexpr std::uint64_t kMebi = 1 << 20;

/// The header of U8 tensors of these sizes, back to back.
std::string header_of(const std::vector<std::uint64_t>& sizes) {
  std::string json = "{";
  std::uint64_t at = 0;
  for (std::size_t number = 0; number < sizes.size(); ++number) {
    json += fmt::format("{}\"t{}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        number == 0 ? "" : ",", number, sizes[number], at, at + sizes[number]);
    at += sizes[number];
  }
  return json + "}";
}

struct Plan {
  explicit Plan(const std::vector<std::uint64_t>& sizes) : json(header_of(sizes)) {
    for (const std::uint64_t size : sizes) end += size;
    plan = std::make_unique<TensorPlan>(json, end);
  }
  [[nodiscard]] ByteRange around(std::uint64_t offset, std::uint64_t size_bytes) const {
    return plan->around({data_at + offset, size_bytes});
  }
  [[nodiscard]] ByteRange data(std::uint64_t offset, std::uint64_t size_bytes) const {
    return {data_at + offset, size_bytes};
  }

  std::string json;
  std::uint64_t data_at = 8 + json.size();
  std::uint64_t end = data_at;
  std::unique_ptr<TensorPlan> plan;
};

}  // namespace

TEST_CASE("a small read fetches its tensor, and no other", "[core][remote]") {
  const Plan plan({5 * kMebi, 3 * kMebi, 64 * kMebi, 1});
  CHECK(plan.around(6 * kMebi, 10) == plan.data(5 * kMebi, 3 * kMebi));
  CHECK(plan.around(0, 1) == plan.data(0, 5 * kMebi));
  CHECK(plan.around(5 * kMebi - 1, 1) == plan.data(0, 5 * kMebi));
  CHECK(plan.around(20 * kMebi, 1) == plan.data(8 * kMebi, 64 * kMebi));
  CHECK(plan.around(72 * kMebi, 1) == plan.data(72 * kMebi, 1));
}

TEST_CASE("a read over two tensors fetches both", "[core][remote]") {
  const Plan plan({5 * kMebi, 3 * kMebi, kMebi});
  CHECK(plan.around(5 * kMebi - 1, 2) == plan.data(0, 8 * kMebi));
}

TEST_CASE("a read far from the last one in a large tensor fetches a mebibyte more", "[core][remote]") {
  const Plan plan({kMebi, 65 * kMebi, kMebi});
  CHECK(plan.around(40 * kMebi, 100) == plan.data(40 * kMebi, kMebi + 100));
  CHECK(plan.around(20 * kMebi, 100) == plan.data(20 * kMebi, kMebi + 100));
  CHECK(plan.around(66 * kMebi - 100, 100) == plan.data(66 * kMebi - 100, 100));
}

TEST_CASE("reads in order fetch more and more ahead, also of the next tensor, up to the end of the file",
          "[core][remote]") {
  const Plan plan({300 * kMebi, 2 * kMebi, 2 * kMebi});
  std::uint64_t offset = 0;
  std::uint64_t ahead = 0;
  for (int step = 0; step < 12; ++step, offset += kMebi) {
    const ByteRange range = plan.around(offset, kMebi);
    CHECK(range.offset == plan.data_at + offset);
    CHECK(range.size_bytes >= ahead);
    ahead = range.size_bytes;
  }
  CHECK(ahead == kMebi + TensorPlan::kSmallBytes);
  CHECK(plan.around(100 * kMebi, kMebi).size_bytes == 2 * kMebi);  // not in order
  for (offset = 101 * kMebi; offset < 290 * kMebi; offset += kMebi)
    static_cast<void>(plan.around(offset, kMebi));
  CHECK(plan.around(290 * kMebi, kMebi).end() == plan.data_at + 300 * kMebi);
  for (offset = 291 * kMebi; offset < 300 * kMebi; offset += kMebi)
    static_cast<void>(plan.around(offset, kMebi));
  CHECK(plan.around(300 * kMebi, 1).end() == plan.end);  // it has read on
}

TEST_CASE("a header that is not valid plans the read alone, and what follows", "[core][remote]") {
  TensorPlan plan("{", 200 * kMebi);
  CHECK(plan.around({100 * kMebi, 10}) == ByteRange{100 * kMebi, kMebi + 10});
  TensorPlan small("{", 100);
  CHECK(small.around({50, 10}).end() == 100);
}
