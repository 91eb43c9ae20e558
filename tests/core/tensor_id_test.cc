// A tensor keeps its id in all headers, and no other tensor ever gets it.
#include "core/format/tensor_id.h"

#include "tests/support/catch.h"

using namespace stfs;

TEST_CASE("the ids of the first header are the positions", "[core][tensor_id]") {
  const TensorIds ids(3);
  CHECK(ids.size() == 3);
  CHECK(ids.end() == 3);
  for (std::uint32_t position = 0; position < 3; ++position) {
    CHECK(ids.of(position) == TensorId{position});
    CHECK(ids.position(TensorId{position}) == position);
  }
  CHECK_FALSE(ids.position(TensorId{3}));
  CHECK_FALSE(TensorIds().position(TensorId{}));
}

TEST_CASE("a tensor keeps its id when others come, go and move", "[core][tensor_id]") {
  const TensorIds first(3);
  // 0 moves behind 2, 1 is removed, and a new tensor is the first.
  const std::vector<std::optional<std::uint32_t>> before = {std::nullopt, 2U, 0U};
  const TensorIds second = first.next(before);
  CHECK(second.size() == 3);
  CHECK(second.of(0) == TensorId{3});
  CHECK(second.of(1) == TensorId{2});
  CHECK(second.of(2) == TensorId{0});
  CHECK(second.position(TensorId{0}) == 2U);
  CHECK_FALSE(second.position(TensorId{1}));
  CHECK(second.end() == 4);
}

TEST_CASE("an id that is free is not given again", "[core][tensor_id]") {
  const std::vector<std::optional<std::uint32_t>> none;
  const std::vector<std::optional<std::uint32_t>> one_new = {std::nullopt};
  const TensorIds empty = TensorIds(2).next(none);
  CHECK(empty.size() == 0);
  CHECK_FALSE(empty.position(TensorId{0}));
  const TensorIds again = empty.next(one_new);
  CHECK(again.of(0) == TensorId{2});
  CHECK_FALSE(again.position(TensorId{1}));
  CHECK(again.next(one_new).of(0) == TensorId{3});
}
