// core/format/tensor_index.h
#include "core/format/tensor_index.h"

#include <limits>
#include <string>

#include "core/format/tensor_index_builder.h"
#include "support/catch.h"

using namespace stfs;

namespace {

constexpr std::uint64_t kMaxElement = std::numeric_limits<std::uint64_t>::max();

void add(TensorIndex::Builder& builder, std::string_view name, std::uint32_t key_at,
         std::initializer_list<std::uint64_t> shape, std::uint64_t begin, std::uint64_t end) {
  builder.begin_tensor(name, key_at);
  builder.set_dtype(Dtype::U8);
  builder.begin_shape();
  for (const std::uint64_t size : shape) builder.add_dimension(size);
  builder.set_data_offsets(begin, end);
}

}  // namespace

TEST_CASE("an index lists tensors by offset and finds them by name", "[core][tensor_index]") {
  TensorIndex::Builder builder;
  add(builder, "late", 10, {2, 3}, 4, 10);
  add(builder, "early", 20, {4}, 0, 4);
  add(builder, "", 30, {}, 10, 11);
  const auto index = std::move(builder).build();
  REQUIRE(index);
  REQUIRE(index->size() == 3);
  CHECK((*index)[0].name == "early");
  CHECK((*index)[1].name == "late");
  CHECK((*index)[1].dtype == Dtype::U8);
  CHECK(shape_text((*index)[1].shape) == "[2,3]");
  CHECK((*index)[1].data == ByteRange{4, 6});
  CHECK((*index)[2].shape.empty());
  CHECK(index->find("early") == 0U);
  CHECK(index->find("late") == 1U);
  CHECK(index->find("") == 2U);
  CHECK(!index->find("lat"));
  CHECK(!index->find(std::string_view("late\0", 5)));
  CHECK(index->parameters() == 4 + 6 + 1);
}

TEST_CASE("tensors at one offset stand by their end, then in the header's order", "[core][tensor_index]") {
  TensorIndex::Builder builder;
  add(builder, "last", 0, {1}, 0, 1);
  for (std::uint32_t i = 1; i <= 100; ++i) add(builder, std::to_string(i), i, {0}, 0, 0);
  const auto index = std::move(builder).build();
  REQUIRE(index);
  std::uint32_t wrong = 0;
  for (std::uint32_t i = 0; i < 100; ++i) wrong += (*index)[i].name != std::to_string(i + 1);
  CHECK(wrong == 0);
  CHECK((*index)[100].name == "last");
}

TEST_CASE("an index names both places of a duplicate", "[core][tensor_index]") {
  TensorIndex::Builder builder;
  add(builder, "twin", 70, {4}, 4, 8);
  add(builder, "other", 50, {4}, 8, 12);
  add(builder, "twin", 90, {4}, 0, 4);
  const auto index = std::move(builder).build();
  REQUIRE(!index);
  CHECK(index.error().name == "twin");
  CHECK(index.error().first_key_at == 70);
  CHECK(index.error().second_key_at == 90);
}

TEST_CASE("an index of a hundred thousand finds each and nothing else", "[core][tensor_index]") {
  constexpr std::uint32_t kCount = 100'000;
  TensorIndex::Builder builder;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    add(builder, "layers." + std::to_string(i) + ".weight", i, {1}, kCount - i, kCount - i + 1);
  }
  const auto index = std::move(builder).build();
  REQUIRE(index);
  std::uint32_t wrong = 0;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    if (index->find("layers." + std::to_string(i) + ".weight") != kCount - 1 - i) ++wrong;
    if (index->find("layers." + std::to_string(i) + ".bias")) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("an index of long names stays well below 200 bytes a tensor", "[core][tensor_index]") {
  constexpr std::uint32_t kCount = 100'000;
  TensorIndex::Builder builder;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    std::string name = "model.layers.self_attn.q_proj.weight." + std::to_string(i);
    add(builder, name, i, {4096, 4096}, i, i + 1);
  }
  const auto index = std::move(builder).build();
  REQUIRE(index);
  CHECK(index->memory_bytes() / kCount < 120);
  CHECK(index->memory_bytes() / kCount > 80);  // a smaller value means that something is not counted
}

TEST_CASE("an empty index finds nothing", "[core][tensor_index]") {
  const TensorIndex nothing;
  CHECK(nothing.size() == 0);
  CHECK(!nothing.find(""));
  CHECK(nothing.parameters() == 0);
}

TEST_CASE("element counts multiply, and saturate where parameters are summed", "[core][tensor_index]") {
  const std::uint64_t shape[] = {2, 3, 4};
  CHECK(element_count(shape) == 24);
  CHECK(element_count({}) == 1);
  CHECK(shape_text({}) == "[]");
  CHECK(shape_text(shape) == "[2,3,4]");
  TensorIndex::Builder builder;
  add(builder, "a", 1, {kMaxElement}, 0, 0);
  add(builder, "b", 2, {kMaxElement}, 0, 0);
  const auto index = std::move(builder).build();
  REQUIRE(index);
  CHECK(index->parameters() == kMaxElement);
}
