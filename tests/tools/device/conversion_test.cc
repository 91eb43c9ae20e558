// Every value of every small dtype, against core/tensor/float_conversion.h, which is itself tested against
// ml_dtypes.
#include "tools/device/conversion.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "core/tensor/float_conversion.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::device;

namespace {

constexpr Dtype kSmall[] = {Dtype::F8_E5M2,     Dtype::F8_E4M3, Dtype::F8_E8M0, Dtype::F8_E4M3FNUZ,
                            Dtype::F8_E5M2FNUZ, Dtype::F16,     Dtype::BF16};
constexpr Dtype kTargets[] = {Dtype::F8_E5M2, Dtype::F8_E4M3, Dtype::F8_E4M3FNUZ, Dtype::F8_E5M2FNUZ,
                              Dtype::F16,     Dtype::BF16,    Dtype::F32};

std::uint64_t patterns_of(Dtype dtype) {
  return std::uint64_t{1} << bits_of(dtype);
}

float value_of(Dtype dtype, std::uint64_t bits) {
  float value = 0;
  std::byte bytes[8];
  std::memcpy(bytes, &bits, sizeof bytes);
  REQUIRE(convert_to_float32(dtype, std::span(bytes).first(bits_of(dtype) / 8), std::span(&value, 1)));
  return value;
}

std::uint64_t convert(Dtype from, Dtype to, std::uint64_t bits, bool& overflow) {
  return convert_float(float_format_of(from).value(), float_format_of(to).value(), bits, overflow);
}

/// All finite magnitudes of a target, ascending, by pattern.
std::vector<float> magnitudes(Dtype dtype) {
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits < patterns_of(dtype) / 2; ++bits) {
    const float value = value_of(dtype, bits);
    if (!std::isfinite(value)) break;
    values.push_back(value);
  }
  return values;
}

/// Rounds by the definition: to the nearest value, and to the even pattern when two values are equally near.
/// Nothing for an overflow: a magnitude past the middle between the largest value and the value that would
/// follow it.
std::optional<std::uint64_t> nearest(const std::vector<float>& values, double magnitude) {
  const double step = double{values[values.size() - 1]} - double{values[values.size() - 2]};
  const double limit = values.back() + step / 2;
  if (magnitude > limit || (magnitude == limit && values.size() % 2 == 0)) return std::nullopt;
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return values.size() - 1;
  const auto at = static_cast<std::uint64_t>(above - values.begin());
  if (at == 0 || *above == magnitude) return at;
  const double up = *above - magnitude;
  const double down = magnitude - values[at - 1];
  if (up == down) return at % 2 == 0 ? at : at - 1;
  return up < down ? at : at - 1;
}

void check_against_definition(Dtype from, Dtype to, const std::vector<float>& values, std::uint64_t bits,
                              double value) {
  bool overflow = false;
  const std::uint64_t got = convert(from, to, bits, overflow);
  CAPTURE(name_of(from), name_of(to), bits, value, got);
  const float back = value_of(to, got);
  const bool has_infinity = std::isinf(
      value_of(to, (patterns_of(to) / 2) - (std::uint64_t{1} << (float_format_of(to)->mantissa_bits))));
  if (std::isnan(value)) {
    REQUIRE(std::isnan(back));
    REQUIRE_FALSE(overflow);
    return;
  }
  const auto wanted = std::isinf(value) ? std::nullopt : nearest(values, std::abs(value));
  if (!wanted) {
    REQUIRE(overflow == !(std::isinf(value) && has_infinity));
    REQUIRE(
        (has_infinity ? std::isinf(back) && std::signbit(back) == std::signbit(value) : std::isnan(back)));
    return;
  }
  REQUIRE_FALSE(overflow);
  REQUIRE(std::abs(back) == values[*wanted]);
  const bool has_minus_zero = to != Dtype::F8_E4M3FNUZ && to != Dtype::F8_E5M2FNUZ;
  if (back != 0 || has_minus_zero) REQUIRE(std::signbit(back) == std::signbit(value));
}

}  // namespace

TEST_CASE("every value of bf16, f16 and each fp8 becomes the float32 that core makes of it",
          "[tools][upload][conversion]") {
  for (const Dtype from : kSmall) {
    for (std::uint64_t bits = 0; bits < patterns_of(from); ++bits) {
      bool overflow = false;
      const std::uint64_t got = convert(from, Dtype::F32, bits, overflow);
      const auto wanted = std::bit_cast<std::uint32_t>(value_of(from, bits));
      if (got != wanted || overflow) FAIL(name_of(from) << " " << bits << ": " << got << ", not " << wanted);
    }
  }
}

TEST_CASE("every value of bf16, f16 and each fp8 becomes the nearest one of each target",
          "[tools][upload][conversion][exhaustive]") {
  for (const Dtype to : kTargets) {
    if (to == Dtype::F32) continue;  // the test above
    const std::vector<float> values = magnitudes(to);
    for (const Dtype from : kSmall) {
      for (std::uint64_t bits = 0; bits < patterns_of(from); ++bits) {
        check_against_definition(from, to, values, bits, value_of(from, bits));
      }
    }
  }
}

TEST_CASE("float32 and float64 are rounded to the nearest, ties to even, at every step of each target",
          "[tools][upload][conversion][exhaustive]") {
  for (const Dtype to : kTargets) {
    if (to == Dtype::F32) continue;
    const std::vector<float> values = magnitudes(to);
    const std::size_t step = values.size() > 1000 ? 13 : 1;
    for (std::size_t at = 0; at + 1 < values.size(); at += step) {
      const float middle = static_cast<float>((double{values[at]} + double{values[at + 1]}) / 2);
      for (const float value :
           {values[at], middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1e38F)}) {
        for (const float each : {value, -value}) {
          check_against_definition(Dtype::F32, to, values, std::bit_cast<std::uint32_t>(each), each);
        }
      }
      const double exact = (double{values[at]} + double{values[at + 1]}) / 2;
      for (const double value : {exact, std::nextafter(exact, 0.0), std::nextafter(exact, 1e300), -exact}) {
        check_against_definition(Dtype::F64, to, values, std::bit_cast<std::uint64_t>(value), value);
      }
    }
    for (const float value : {values.back(), 3.4e38F, std::numeric_limits<float>::infinity(), 1e-45F, 1e-38F,
                              std::numeric_limits<float>::quiet_NaN()}) {
      check_against_definition(Dtype::F32, to, values, std::bit_cast<std::uint32_t>(value), value);
    }
    for (const double value : {1e300, 5e-324, -1e-300}) {
      check_against_definition(Dtype::F64, to, values, std::bit_cast<std::uint64_t>(value), value);
    }
  }
}

TEST_CASE("float64 becomes the float32 that the processor makes of it", "[tools][upload][conversion]") {
  std::uint64_t state = 1;
  for (int round = 0; round < 200'000; ++round) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    // Most exponents of float64 are out of float32's range: half of them are drawn from inside.
    std::uint64_t bits = state ^ state >> 29U;
    if (round % 2 == 0) bits = (bits & 0x800FFFFFFFFFFFFFU) | (860 + (bits >> 52U) % 300) << 52U;
    const double value = std::bit_cast<double>(bits);
    if (std::isnan(value)) continue;
    bool overflow = false;
    const auto got = static_cast<std::uint32_t>(convert(Dtype::F64, Dtype::F32, bits, overflow));
    const auto wanted = static_cast<float>(value);
    if (got != std::bit_cast<std::uint32_t>(wanted) ||
        overflow != (std::isinf(wanted) && !std::isinf(value))) {
      FAIL(value << ": " << got);
    }
  }
}

TEST_CASE("ranges convert as their elements do, and count what did not fit", "[tools][upload][conversion]") {
  std::vector<std::uint16_t> from(65536);
  for (std::size_t at = 0; at < from.size(); ++at) from[at] = static_cast<std::uint16_t>(at);
  for (const Dtype source : {Dtype::F16, Dtype::BF16}) {
    for (const Dtype target : kTargets) {
      const std::size_t target_bytes = bits_of(target) / 8;
      std::vector<std::byte> to(from.size() * target_bytes + 1);  // at an odd address
      const std::uint64_t overflows =
          convert_elements(source, std::as_bytes(std::span(from)), target, std::span(to).subspan(1));
      std::uint64_t expected_overflows = 0;
      for (std::size_t at = 0; at < from.size(); ++at) {
        bool overflow = false;
        const std::uint64_t wanted = convert(source, target, from[at], overflow);
        expected_overflows += overflow ? 1 : 0;
        std::uint64_t got = 0;
        std::memcpy(&got, to.data() + 1 + at * target_bytes, target_bytes);
        if (got != wanted) FAIL(name_of(source) << " to " << name_of(target) << ": " << at);
      }
      CHECK(overflows == expected_overflows);
    }
  }
}
