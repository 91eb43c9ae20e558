// core/tensor/non_finite.h against the exact conversion to float32, and against the compiler's own
// arithmetic.
#include "core/tensor/non_finite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/tensor/float_conversion.h"
#include "tests/support/catch.h"

using namespace stfs;

namespace {

using Bytes = std::vector<std::byte>;

template <class Value>
Bytes bytes_of_values(const std::vector<Value>& values) {
  Bytes bytes(values.size() * sizeof(Value));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Every pattern of a dtype of 8 or 16 bits once, in order.
Bytes every_pattern(Dtype dtype) {
  Bytes bytes;
  const unsigned patterns = 1U << bits_of(dtype);
  for (unsigned pattern = 0; pattern < patterns; ++pattern) {
    bytes.push_back(static_cast<std::byte>(pattern));
    if (bits_of(dtype) == 16) bytes.push_back(static_cast<std::byte>(pattern >> 8));
  }
  return bytes;
}

template <class Value>
NonFinite counted(const std::vector<Value>& values) {
  NonFinite sum;
  for (const Value value : values) sum += {std::isnan(value) ? 1U : 0U, std::isinf(value) ? 1U : 0U};
  return sum;
}

constexpr auto kNarrow = {Dtype::F8_E5M2,     Dtype::F8_E4M3, Dtype::F8_E8M0, Dtype::F8_E4M3FNUZ,
                          Dtype::F8_E5M2FNUZ, Dtype::F16,     Dtype::BF16};

}  // namespace

TEST_CASE("every pattern of 8 and 16 bits is what its value as float32 is", "[core][non_finite]") {
  for (const Dtype dtype : kNarrow) {
    CAPTURE(name_of(dtype));
    const Bytes patterns = every_pattern(dtype);
    const std::size_t item_bytes = bits_of(dtype) / 8;
    std::vector<float> values(patterns.size() / item_bytes);
    REQUIRE(convert_to_float32(dtype, patterns, values));
    bool is_equal = true;
    for (std::size_t at = 0; at < values.size(); ++at) {
      const auto one = std::span(patterns).subspan(at * item_bytes, item_bytes);
      is_equal = is_equal && count_non_finite(dtype, one) == counted(std::vector{values[at]});
    }
    CHECK(is_equal);
    const NonFinite sum = count_non_finite(dtype, patterns);
    CHECK(sum == counted(values));
    CHECK(has_nan(dtype) == (sum.nan > 0));
    CHECK(has_infinity(dtype) == (sum.infinite > 0));
  }
}

TEST_CASE("the counts of every pattern are those of the formats' definitions", "[core][non_finite]") {
  const auto count_all = [](Dtype dtype) { return count_non_finite(dtype, every_pattern(dtype)); };
  CHECK(count_all(Dtype::F16) == NonFinite{2 * 1023, 2});
  CHECK(count_all(Dtype::BF16) == NonFinite{2 * 127, 2});
  CHECK(count_all(Dtype::F8_E5M2) == NonFinite{2 * 3, 2});
  CHECK(count_all(Dtype::F8_E4M3) == NonFinite{2, 0});
  CHECK(count_all(Dtype::F8_E8M0) == NonFinite{1, 0});
  CHECK(count_all(Dtype::F8_E4M3FNUZ) == NonFinite{1, 0});
  CHECK(count_all(Dtype::F8_E5M2FNUZ) == NonFinite{1, 0});
}

TEST_CASE("wide patterns at every edge and at random are what the compiler says", "[core][non_finite]") {
  std::mt19937_64 random(20261121);
  std::vector<float> singles;
  std::vector<double> doubles;
  for (const std::uint32_t edge : {0x00000000U, 0x007fffffU, 0x7f7fffffU, 0x7f800000U, 0x7f800001U,
                                   0x7fbfffffU, 0x7fc00000U, 0x7fffffffU}) {
    singles.push_back(std::bit_cast<float>(edge));
    singles.push_back(std::bit_cast<float>(edge | 0x80000000U));
  }
  for (const std::uint64_t edge :
       {std::uint64_t{0}, std::uint64_t{0x7fefffffffffffff}, std::uint64_t{0x7ff0000000000000},
        std::uint64_t{0x7ff0000000000001}, std::uint64_t{0x7ff00000ffffffff},
        std::uint64_t{0x7ff8000000000000}, std::uint64_t{0x7fffffffffffffff}}) {
    doubles.push_back(std::bit_cast<double>(edge));
    doubles.push_back(std::bit_cast<double>(edge | std::uint64_t{1} << 63));
  }
  for (int round = 0; round < 20'000; ++round) {
    // Every second one with all exponent bits set.
    const std::uint64_t bits = random();
    const bool is_odd = round % 2 != 0;
    singles.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits) | (is_odd ? 0x7f800000U : 0U)));
    doubles.push_back(std::bit_cast<double>(bits | (is_odd ? std::uint64_t{0x7ff0000000000000} : 0U)));
  }
  CHECK(count_non_finite(Dtype::F32, bytes_of_values(singles)) == counted(singles));
  CHECK(count_non_finite(Dtype::F64, bytes_of_values(doubles)) == counted(doubles));
}

TEST_CASE("a complex number counts where either part does", "[core][non_finite]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> parts = {1, 2, nan, 1, 1, nan, nan, nan, infinity, 0, 0, -infinity, nan, infinity};
  CHECK(count_non_finite(Dtype::C64, bytes_of_values(parts)) == NonFinite{4, 3});
}

TEST_CASE("blocks, their rests and odd addresses are all counted", "[core][non_finite]") {
  for (const Dtype dtype : kNarrow) {
    CAPTURE(name_of(dtype));
    const Bytes patterns = every_pattern(dtype);
    const std::size_t item_bytes = bits_of(dtype) / 8;
    std::mt19937 random(7);
    for (const std::size_t count : {0U, 1U, 15U, 223U, 224U, 225U, 1023U, 1024U, 1025U, 5000U}) {
      Bytes bytes(1);  // the elements begin at an odd address
      NonFinite due;
      for (std::size_t at = 0; at < count; ++at) {
        const auto one =
            std::span(patterns).subspan(random() % (patterns.size() / item_bytes) * item_bytes, item_bytes);
        due += count_non_finite(dtype, one);
        bytes.insert(bytes.end(), one.begin(), one.end());
      }
      CHECK(count_non_finite(dtype, std::span(bytes).subspan(1)) == due);
    }
    // No counter of a block runs over.
    Bytes all(100'000 * item_bytes,
              std::byte{dtype == Dtype::F8_E4M3FNUZ || dtype == Dtype::F8_E5M2FNUZ ? std::uint8_t{0x80}
                                                                                   : std::uint8_t{0xff}});
    CHECK(count_non_finite(dtype, all) == NonFinite{100'000, 0});
  }
}

TEST_CASE("integers and the floats below a byte have neither", "[core][non_finite]") {
  const Bytes ones(4096, std::byte{0xff});
  for (const Dtype dtype : all_dtypes()) {
    CAPTURE(name_of(dtype));
    const bool is_none = count_non_finite(dtype, ones) == NonFinite{};
    CHECK(has_nan(dtype) == (!is_none || dtype == Dtype::F8_E4M3FNUZ || dtype == Dtype::F8_E5M2FNUZ));
    if (has_infinity(dtype)) CHECK(has_nan(dtype));
  }
}
