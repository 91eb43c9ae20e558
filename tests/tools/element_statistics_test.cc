// The statistics of two tensors' elements, compared with values that a person computed.
#include "tools/compare/element_statistics.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/plain.h"

using namespace stfs;
using test::bytes_of;
using tools::compare_elements;
using tools::ElementStatistics;

namespace {

template <class T>
std::string packed(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Packs the low `bits` of each pattern, from the lowest bit of the first byte on.
std::string packed_bits(const std::vector<std::uint64_t>& patterns, unsigned bits) {
  std::string bytes((patterns.size() * bits + 7) / 8, '\0');
  for (std::size_t at = 0; at < patterns.size() * bits; ++at) {
    const bool is_set = (patterns[at / bits] >> at % bits & 1U) != 0;
    if (is_set) bytes[at / 8] = static_cast<char>(bytes[at / 8] | 1U << at % 8);
  }
  return bytes;
}

/// The bit patterns of 1, 2 and 4.
struct Patterns {
  Dtype dtype;
  std::uint64_t one;
  std::uint64_t two;
  std::uint64_t four;
};
constexpr Patterns kPatterns[] = {
    {Dtype::U8, 1, 2, 4},
    {Dtype::I8, 1, 2, 4},
    {Dtype::I16, 1, 2, 4},
    {Dtype::U16, 1, 2, 4},
    {Dtype::I32, 1, 2, 4},
    {Dtype::U32, 1, 2, 4},
    {Dtype::I64, 1, 2, 4},
    {Dtype::U64, 1, 2, 4},
    {Dtype::F4, 2, 4, 6},
    {Dtype::F6_E2M3, 8, 16, 24},
    {Dtype::F6_E3M2, 12, 16, 20},
    {Dtype::F8_E5M2, 0x3c, 0x40, 0x44},
    {Dtype::F8_E4M3, 0x38, 0x40, 0x48},
    {Dtype::F8_E8M0, 127, 128, 129},
    {Dtype::F8_E4M3FNUZ, 0x40, 0x48, 0x50},
    {Dtype::F8_E5M2FNUZ, 0x40, 0x44, 0x48},
    {Dtype::F16, 0x3c00, 0x4000, 0x4400},
    {Dtype::BF16, 0x3f80, 0x4000, 0x4080},
    {Dtype::F32, 0x3f800000, 0x40000000, 0x40800000},
    {Dtype::F64, 0x3ff0000000000000, 0x4000000000000000, 0x4010000000000000},
};

template <class T>
ElementStatistics compare_vectors(Dtype dtype, const std::vector<T>& a, const std::vector<T>& b) {
  const std::string bytes_a = packed(a);
  const std::string bytes_b = packed(b);
  return compare_elements(dtype, bytes_of(bytes_a), bytes_of(bytes_b));
}

bool is_near(double x, double y) {
  return std::abs(x - y) < 1e-14;
}

constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("each dtype has the numbers of its values", "[tools][diff]") {
  // Few elements, and more elements than a block, a vector and a slice have.
  for (const std::size_t repeats : {std::size_t{1}, std::size_t{3}, std::size_t{1027}}) {
    for (const Patterns& is : kPatterns) {
      INFO(name_of(is.dtype) << ", " << repeats);
      std::vector<std::uint64_t> a;
      std::vector<std::uint64_t> b;
      for (std::size_t at = 0; at < repeats; ++at) {
        a.insert(a.end(), {is.one, is.two, is.four, is.one});
        b.insert(b.end(), {is.one, is.four, is.four, is.two});
      }
      const std::string bytes_a = packed_bits(a, bits_of(is.dtype));
      const std::string bytes_b = packed_bits(b, bits_of(is.dtype));
      const ElementStatistics found = compare_elements(is.dtype, bytes_of(bytes_a), bytes_of(bytes_b));
      const auto times = static_cast<double>(repeats);
      CHECK(found.different == 2 * repeats);
      CHECK(found.not_finite == 0);
      CHECK(found.largest_difference == 2);
      CHECK(found.largest_relative_difference == 0.5);
      CHECK(found.squares_a == 22 * times);
      CHECK(found.squares_b == 37 * times);
      CHECK(found.squares_difference == 5 * times);
      CHECK(found.product == 27 * times);
      CHECK(found.norm_a() == std::sqrt(22 * times));
      CHECK(found.norm_b() == std::sqrt(37 * times));
      CHECK(found.norm_difference() == std::sqrt(5 * times));
      REQUIRE(found.cosine());
      CHECK(is_near(*found.cosine(), 27 / std::sqrt(22.0 * 37.0)));
    }
  }
}

TEST_CASE("every dtype is compared", "[tools][diff]") {
  const std::string a(24, '\x01');
  const std::string b(24, '\x02');
  for (const Dtype dtype : all_dtypes()) {
    INFO(name_of(dtype));
    CHECK(compare_elements(dtype, bytes_of(a), bytes_of(b)).different > 0);
    const ElementStatistics same = compare_elements(dtype, bytes_of(a), bytes_of(a));
    CHECK(same.different == 0);
    CHECK(same.largest_difference == 0);
    CHECK(same.squares_a == same.squares_b);
    CHECK(compare_elements(dtype, {}, {}).different == 0);
  }
}

TEST_CASE("signed integers have signs, and BOOL counts as 0 and 1", "[tools][diff]") {
  const ElementStatistics bytes = compare_vectors<std::int8_t>(Dtype::I8, {-128, -1, 3}, {127, 1, 3});
  CHECK(bytes.different == 2);
  CHECK(bytes.largest_difference == 255);
  CHECK(bytes.largest_relative_difference == 2);
  CHECK(bytes.product == -128.0 * 127 - 1 + 9);
  const ElementStatistics truth = compare_vectors<std::uint8_t>(Dtype::BOOL, {0, 1, 1, 0}, {0, 1, 0, 1});
  CHECK(truth.different == 2);
  CHECK(truth.largest_difference == 1);
  CHECK(truth.norm_a() == std::sqrt(2.0));
  CHECK(is_near(*truth.cosine(), 0.5));
}

TEST_CASE("differences of 64-bit integers are exact where the integers exceed double's", "[tools][diff]") {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 62) + 1;
  const ElementStatistics found = compare_vectors<std::int64_t>(Dtype::I64, {kLarge}, {kLarge - 1});
  CHECK(found.different == 1);
  CHECK(found.largest_difference == 1);
  CHECK(found.norm_difference() == 1);
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(compare_vectors<std::int64_t>(Dtype::I64, {kLeast}, {kMost}).largest_difference == 0x1p64);
  constexpr auto kMostUnsigned = std::numeric_limits<std::uint64_t>::max();
  CHECK(compare_vectors<std::uint64_t>(Dtype::U64, {kMostUnsigned}, {kMostUnsigned - 3}).largest_difference ==
        3);
}

TEST_CASE("what is not finite in one of the tensors is counted and left out", "[tools][diff]") {
  const std::vector<float> a = {1, kFloatNan, 3, kFloatInfinity, kFloatInfinity, 2, kFloatNan, 0, 5};
  const std::vector<float> b = {1, 7, -kFloatInfinity, kFloatInfinity, -kFloatInfinity, 4, kFloatNan, 0, 5};
  const ElementStatistics found = compare_vectors(Dtype::F32, a, b);
  CHECK(found.different == 4);   // NaN and 7, 3 and -infinity, the two infinities, 2 and 4
  CHECK(found.not_finite == 5);  // these without the last, and both equal pairs
  CHECK(found.largest_difference == 2);
  CHECK(found.largest_relative_difference == 0.5);
  CHECK(found.squares_a == 1 + 4 + 25);
  CHECK(found.squares_b == 1 + 16 + 25);
  CHECK(found.squares_difference == 4);
  CHECK(found.product == 1 + 8 + 25);
  // Other types with NaNs: F8_E4M3, F8_E8M0, the FNUZ types, and halves.
  CHECK(compare_vectors<std::uint8_t>(Dtype::F8_E4M3, {0x7f, 0x38}, {0x38, 0x38}).not_finite == 1);
  CHECK(compare_vectors<std::uint8_t>(Dtype::F8_E8M0, {0xff, 127}, {127, 127}).not_finite == 1);
  CHECK(compare_vectors<std::uint8_t>(Dtype::F8_E5M2FNUZ, {0x80, 0x40}, {0x40, 0x40}).not_finite == 1);
  CHECK(compare_vectors<std::uint16_t>(Dtype::F16, {0x7c00, 0x3c00}, {0x3c00, 0x3c00}).not_finite == 1);
  CHECK(compare_vectors<std::uint16_t>(Dtype::BF16, {0x7fc0, 0x3f80}, {0x3f80, 0x3f80}).not_finite == 1);
}

TEST_CASE("elements that only their bits distinguish count as different", "[tools][diff]") {
  const ElementStatistics zeros = compare_vectors<float>(Dtype::F32, {0, -0.0F}, {-0.0F, -0.0F});
  CHECK(zeros.different == 1);
  CHECK(zeros.largest_difference == 0);
  CHECK(zeros.largest_relative_difference == 0);
  CHECK_FALSE(zeros.cosine());
  const ElementStatistics payloads = compare_vectors<std::uint16_t>(Dtype::BF16, {0x7fc0}, {0x7fc1});
  CHECK(payloads.different == 1);
  CHECK(payloads.not_finite == 1);
  CHECK(compare_vectors<std::uint8_t>(Dtype::F4, {0x08}, {0x00}).different == 1);
}

TEST_CASE("a zero that becomes a number differs by all of it", "[tools][diff]") {
  const ElementStatistics found = compare_vectors<double>(Dtype::F64, {0, 0, 0}, {0, 1e-300, 0});
  CHECK(found.largest_relative_difference == 1);
  CHECK(found.largest_difference == 1e-300);
  CHECK_FALSE(found.cosine());
}

TEST_CASE("results beyond the range of double are infinite", "[tools][diff]") {
  const ElementStatistics found = compare_vectors<double>(Dtype::F64, {1e308, 1}, {-1e308, 1});
  CHECK(found.not_finite == 0);
  CHECK(std::isinf(found.largest_difference));
  CHECK(std::isinf(found.norm_a()));
  CHECK_FALSE(found.cosine());
}

TEST_CASE("complex elements are compared as complex numbers", "[tools][diff]") {
  // 3 + 4i and 3 + 4i; 1 and i; NaN in one part
  const ElementStatistics found =
      compare_vectors<float>(Dtype::C64, {3, 4, 1, 0, 1, kFloatNan}, {3, 4, 0, 1, 1, 1});
  CHECK(found.different == 2);
  CHECK(found.not_finite == 1);
  CHECK(is_near(found.largest_difference, std::sqrt(2.0)));
  CHECK(is_near(found.largest_relative_difference, std::sqrt(2.0)));
  CHECK(found.squares_a == 26);
  CHECK(found.squares_b == 26);
  CHECK(is_near(found.squares_difference, 2.0));
  CHECK(found.product == 25);
  CHECK(is_near(*found.cosine(), 25.0 / 26));
}

TEST_CASE("the cosine of a tensor with itself is 1 and not more", "[tools][diff]") {
  std::vector<float> values(1000);
  for (std::size_t at = 0; at < values.size(); ++at) values[at] = 0.1F * static_cast<float>(at % 37);
  std::vector<float> opposite = values;
  for (float& value : opposite) value = -value;
  CHECK(is_near(*compare_vectors(Dtype::F32, values, values).cosine(), 1));
  CHECK(*compare_vectors(Dtype::F32, values, values).cosine() <= 1);
  CHECK(*compare_vectors(Dtype::F32, values, opposite).cosine() >= -1);
}
