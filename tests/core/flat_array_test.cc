// core/base/flat_array.h
#include "core/base/flat_array.h"

#include <cstdint>
#include <utility>

#include "support/catch.h"

using stfs::FlatArray;

TEST_CASE("a flat array keeps what is put into it while it grows", "[core][flat_array]") {
  FlatArray<std::uint32_t> array;
  CHECK(array.empty());
  for (std::uint32_t i = 0; i < 100'000; ++i) array.push_back(i);
  const std::uint32_t more[] = {7, 8};
  array.append(more, 2);
  array.append(nullptr, 0);
  REQUIRE(array.size() == 100'002);
  std::uint32_t wrong = 0;
  for (std::uint32_t i = 0; i < 100'000; ++i) wrong += array[i] != i;
  CHECK(wrong == 0);
  CHECK(array.back() == 8);
  array.trim();
  CHECK(array.capacity_bytes() == 100'002 * sizeof(std::uint32_t));
  CHECK(array[99'999] == 99'999);
}

TEST_CASE("a flat array that was moved from is empty", "[core][flat_array]") {
  FlatArray<char> first;
  first.append("abc", 3);
  FlatArray<char> second = std::move(first);
  CHECK(second.size() == 3);
  CHECK(first.empty());
  first.push_back('x');
  CHECK(first[0] == 'x');
}

TEST_CASE("a flat array of zeros is zero, whatever it held before", "[core][flat_array]") {
  FlatArray<std::uint32_t> array;
  array.push_back(5);
  array.assign_zero(1000);
  REQUIRE(array.size() == 1000);
  std::uint32_t sum = 0;
  for (const std::uint32_t value : array) sum += value;
  CHECK(sum == 0);
}
