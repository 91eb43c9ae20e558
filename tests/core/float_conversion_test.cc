// core/tensor/float_conversion.h. tests/reference/test_float_conversion.py compares with ml_dtypes.
#include "core/tensor/float_conversion.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.h"

using namespace stfs;

namespace {

// A type as its specification defines it. The conversion under test does not use std::ldexp.
struct Definition {
  Dtype dtype;
  unsigned exponent_bits;
  unsigned mantissa_bits;
  int bias;
  enum { kIeee, kAllOnesIsNan, kMinusZeroIsNan, kNumbersOnly } special;
};

constexpr Definition kDefinitions[] = {
    {Dtype::F4, 2, 1, 1, Definition::kNumbersOnly},
    {Dtype::F6_E2M3, 2, 3, 1, Definition::kNumbersOnly},
    {Dtype::F6_E3M2, 3, 2, 3, Definition::kNumbersOnly},
    {Dtype::F8_E5M2, 5, 2, 15, Definition::kIeee},
    {Dtype::F8_E4M3, 4, 3, 7, Definition::kAllOnesIsNan},
    {Dtype::F8_E4M3FNUZ, 4, 3, 8, Definition::kMinusZeroIsNan},
    {Dtype::F8_E5M2FNUZ, 5, 2, 16, Definition::kMinusZeroIsNan},
    {Dtype::F16, 5, 10, 15, Definition::kIeee},
    {Dtype::BF16, 8, 7, 127, Definition::kIeee},
};

double value_of(const Definition& type, unsigned bits) {
  const unsigned sign_at = type.exponent_bits + type.mantissa_bits;
  const double sign = (bits >> sign_at) != 0 ? -1 : 1;
  const auto exponent = static_cast<int>((bits >> type.mantissa_bits) & ((1U << type.exponent_bits) - 1));
  const unsigned mantissa = bits & ((1U << type.mantissa_bits) - 1);
  const bool is_top = exponent + 1 == 1 << type.exponent_bits;
  if (type.special == Definition::kMinusZeroIsNan && bits == 1U << sign_at) return std::nan("");
  if (type.special == Definition::kAllOnesIsNan && is_top && mantissa + 1 == 1U << type.mantissa_bits) {
    return std::copysign(std::nan(""), sign);
  }
  if (type.special == Definition::kIeee && is_top) {
    return std::copysign(mantissa != 0 ? std::nan("") : HUGE_VAL, sign);
  }
  const double fraction = std::ldexp(static_cast<double>(mantissa), -static_cast<int>(type.mantissa_bits));
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - type.bias)
                               : std::ldexp(1 + fraction, exponent - type.bias));
}

/// Packs elements of `bits_each` bits, from the lowest bit on.
std::vector<std::byte> packed(const std::vector<unsigned>& elements, unsigned bits_each) {
  std::vector<std::byte> bytes((elements.size() * bits_each + 7) / 8);
  for (std::size_t i = 0; i < elements.size() * bits_each; ++i) {
    const unsigned bit = elements[i / bits_each] >> (i % bits_each) & 1U;
    bytes[i / 8] |= static_cast<std::byte>(bit << (i % 8));
  }
  return bytes;
}

std::vector<unsigned> all_patterns(unsigned bits) {
  std::vector<unsigned> patterns(std::size_t{1} << bits);
  for (unsigned i = 0; i < patterns.size(); ++i) patterns[i] = i;
  return patterns;
}

std::vector<float> converted(Dtype dtype, std::span<const std::byte> bytes, std::size_t count,
                             std::uint64_t first_element = 0) {
  std::vector<float> floats(count, 12345.0F);
  const auto result = convert_to_float32(dtype, bytes, floats, first_element);
  if (!result) FAIL(result.error().message);
  return floats;
}

std::uint32_t bits_of_first(Dtype dtype, const std::vector<unsigned>& elements) {
  return std::bit_cast<std::uint32_t>(converted(dtype, packed(elements, bits_of(dtype)), 1)[0]);
}

template <class T>
std::vector<float> converted_from(Dtype dtype, const std::vector<T>& values) {
  return converted(dtype, std::as_bytes(std::span(values)), values.size());
}

void check_bits(const std::vector<float>& floats, const std::vector<float>& expected) {
  REQUIRE(floats.size() == expected.size());
  CHECK(std::memcmp(floats.data(), expected.data(), floats.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("every value of every type below 32 bits is converted exactly", "[core][float_conversion]") {
  for (const Definition& type : kDefinitions) {
    CAPTURE(std::string(name_of(type.dtype)));
    const unsigned bits = bits_of(type.dtype);
    REQUIRE(1 + type.exponent_bits + type.mantissa_bits == bits);
    const auto patterns = all_patterns(bits);
    const auto floats = converted(type.dtype, packed(patterns, bits), patterns.size());
    for (const unsigned pattern : patterns) {
      const double due = value_of(type, pattern);
      const auto is = static_cast<double>(floats[pattern]);
      CAPTURE(pattern, due, is);
      REQUIRE(std::isnan(is) == std::isnan(due));
      if (!std::isnan(due)) REQUIRE(is == due);
      if (!std::isnan(due) || type.special != Definition::kMinusZeroIsNan)
        REQUIRE(std::signbit(is) == std::signbit(due));
    }
  }
}

TEST_CASE("every scale of F8_E8M0 is its power of two", "[core][float_conversion]") {
  const auto floats = converted(Dtype::F8_E8M0, packed(all_patterns(8), 8), 256);
  for (int i = 0; i < 255; ++i) REQUIRE(floats[static_cast<unsigned>(i)] == std::ldexp(1.0F, i - 127));
  CHECK(std::isnan(floats[255]));
}

TEST_CASE("the types reach as far as their specifications say", "[core][float_conversion]") {
  const auto number = [](Dtype dtype, unsigned bits) {
    return converted(dtype, packed({bits}, bits_of(dtype)), 1)[0];
  };
  CHECK(number(Dtype::F4, 0x7) == 6.0F);
  CHECK(number(Dtype::F4, 0x9) == -0.5F);
  CHECK(number(Dtype::F6_E2M3, 0x1F) == 7.5F);
  CHECK(number(Dtype::F6_E3M2, 0x1F) == 28.0F);
  CHECK(number(Dtype::F8_E4M3, 0x7E) == 448.0F);
  CHECK(number(Dtype::F8_E4M3, 0x01) == 0x1p-9F);
  CHECK(number(Dtype::F8_E5M2, 0x7B) == 57344.0F);
  CHECK(number(Dtype::F8_E5M2, 0x7C) == std::numeric_limits<float>::infinity());
  CHECK(number(Dtype::F8_E4M3FNUZ, 0x7F) == 240.0F);
  CHECK(number(Dtype::F8_E5M2FNUZ, 0x7F) == 57344.0F);
  CHECK(number(Dtype::F16, 0x7BFF) == 65504.0F);
  CHECK(number(Dtype::F16, 0x0001) == 0x1p-24F);
  CHECK(number(Dtype::BF16, 0x0001) == 0x1p-133F);
}

TEST_CASE("a NaN keeps its sign and its bits", "[core][float_conversion]") {
  for (unsigned sign : {0U, 1U}) {
    for (unsigned mantissa = 1; mantissa < 1024; ++mantissa) {
      REQUIRE(bits_of_first(Dtype::F16, {sign << 15 | 0x7C00 | mantissa}) ==
              (sign << 31 | 0x7F800000 | mantissa << 13));
    }
    for (unsigned mantissa = 1; mantissa < 128; ++mantissa) {
      REQUIRE(bits_of_first(Dtype::BF16, {sign << 15 | 0x7F80 | mantissa}) ==
              (sign << 31 | 0x7F800000 | mantissa << 16));
    }
    for (unsigned mantissa = 1; mantissa < 4; ++mantissa) {
      REQUIRE(bits_of_first(Dtype::F8_E5M2, {sign << 7 | 0x7C | mantissa}) ==
              (sign << 31 | 0x7F800000 | mantissa << 21));
    }
    CHECK(bits_of_first(Dtype::F8_E4M3, {sign << 7 | 0x7F}) == (sign << 31 | 0x7FF00000));
  }
  CHECK(bits_of_first(Dtype::F8_E4M3FNUZ, {0x80}) == 0x7FC00000);
  CHECK(bits_of_first(Dtype::F8_E5M2FNUZ, {0x80}) == 0x7FC00000);
  CHECK(bits_of_first(Dtype::F8_E8M0, {0xFF}) == 0x7FC00000);
  // A signalling NaN of 32 bits is copied unchanged.
  const std::vector<std::uint32_t> signalling = {0xFF800001};
  const auto floats = converted_from(Dtype::F32, signalling);
  CHECK(std::memcmp(floats.data(), signalling.data(), 4) == 0);
}

TEST_CASE("F64 is rounded to the nearest float32, ties to even", "[core][float_conversion]") {
  const double inf = HUGE_VAL;
  const std::vector<double> doubles = {
      0.0,     -0.0, 1 + 0x1p-24, 1 + 0x1p-24 + 0x1p-50, 1 + 0x3p-24, -0x1p-149, 0x1p-150, 0x1.8p-149, 1e39,
      -1e-300, inf,  -inf,        0x1.fffffep127};
  check_bits(converted_from(Dtype::F64, doubles),
             {0.0F, -0.0F, 1.0F, 1 + 0x1p-23F, 1 + 0x1p-22F, -0x1p-149F, 0.0F, 0x1p-148F,
              std::numeric_limits<float>::infinity(), -0.0F, std::numeric_limits<float>::infinity(),
              -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()});
  CHECK(std::isnan(converted_from(Dtype::F64, std::vector{std::nan("")})[0]));
}

TEST_CASE("the first of two F4 lies in the low half of its byte", "[core][float_conversion]") {
  const std::vector<std::byte> bytes = {std::byte{0x21}, std::byte{0xF7}};
  CHECK(converted(Dtype::F4, bytes, 4) == std::vector{0.5F, 1.0F, 6.0F, -6.0F});
}

TEST_CASE("a conversion may begin and end at any element and any address", "[core][float_conversion]") {
  for (const Dtype dtype : all_dtypes()) {
    if (!is_floating(dtype)) continue;
    CAPTURE(std::string(name_of(dtype)));
    const unsigned bits = bits_of(dtype);
    constexpr std::size_t kElements = 96;
    std::vector<std::byte> storage(1 + kElements * bits / 8);
    for (std::size_t i = 0; i < storage.size(); ++i) storage[i] = static_cast<std::byte>(i * 37 % 113);
    const auto bytes = std::span<const std::byte>(storage).subspan(1);  // at an odd address
    const auto whole = converted(dtype, bytes, kElements);
    for (std::size_t first = 0; first <= 40; ++first) {
      for (std::size_t count = 0; count <= kElements - first; count += count < 40 ? 1 : 7) {
        const auto floats = converted(dtype, bytes, count, first);
        REQUIRE(std::equal(floats.begin(), floats.end(), whole.begin() + static_cast<std::ptrdiff_t>(first)));
      }
    }
  }
}

TEST_CASE("nothing is read behind the last element", "[core][float_conversion]") {
  // Exactly sized allocations, for the address sanitizer.
  for (const Dtype dtype : {Dtype::F4, Dtype::F6_E2M3, Dtype::F8_E4M3, Dtype::F16, Dtype::F64}) {
    for (std::size_t groups = 1; groups < 70; ++groups) {
      const std::size_t elements = groups * 4;
      const std::vector<std::byte> bytes(elements * bits_of(dtype) / 8);
      CHECK(converted(dtype, bytes, elements).back() == 0.0F);
      CHECK(converted(dtype, bytes, 1, elements - 1).back() == 0.0F);
    }
  }
}

TEST_CASE("what is no floating type, or too short, is refused", "[core][float_conversion]") {
  const std::vector<std::byte> bytes(8);
  std::vector<float> floats(2);
  for (const Dtype dtype : {Dtype::BOOL, Dtype::U8, Dtype::I64, Dtype::C64}) {
    CHECK(!is_floating(dtype));
    const auto result = convert_to_float32(dtype, bytes, floats);
    REQUIRE(!result);
    CHECK(result.error().errno_value == EINVAL);
    CHECK(result.error().message ==
          std::string(name_of(dtype)) + " is not a floating-point type of real numbers");
  }
  CHECK(convert_to_float32(Dtype::F32, bytes, floats));
  const auto result = convert_to_float32(Dtype::F32, bytes, floats, 1);
  REQUIRE(!result);
  CHECK(result.error().message == "8 bytes hold 2 elements of F32, not 2 from element 1 on");
  CHECK(!convert_to_float32(Dtype::F64, bytes, floats));
  CHECK(!convert_to_float32(Dtype::F4, bytes, floats, ~0ULL));
  CHECK(!convert_to_float32(Dtype::F4, bytes, floats, 15));
  CHECK(convert_to_float32(Dtype::F4, bytes, floats, 14));
  CHECK(!convert_to_float32(Dtype::F6_E2M3, std::span(bytes).first(1), floats));
  CHECK(convert_to_float32(Dtype::F16, {}, {}));
}
