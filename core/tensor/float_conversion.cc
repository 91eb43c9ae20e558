// Converts types of up to 8 bits by tables, which the compiler makes from the definition of each type.
// Converts F16 and BF16 by arithmetic on their bits, without a branch, so that compilers vectorize the loops.
#include "core/tensor/float_conversion.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace stfs {
namespace {

static_assert(std::numeric_limits<float>::is_iec559 && std::numeric_limits<double>::is_iec559);

/// How a type uses the bit patterns that mean infinity and NaN in IEEE 754.
enum class Special : std::uint8_t {
  Ieee,       // as IEEE 754 does
  AllOnes,    // as numbers, but the largest pattern of each sign is NaN ("fn")
  MinusZero,  // as numbers; the pattern of -0 is the only NaN ("fnuz")
  None,       // as numbers; there is no NaN
};

struct Format {
  unsigned exponent_bits = 0;
  unsigned mantissa_bits = 0;
  int bias = 0;
  Special special = Special::None;
};

// OCP 8-bit floating point specification and MX specification 1.0, table 1; for FNUZ arXiv:2206.02915.
constexpr Format kE2M1{2, 1, 1, Special::None};
constexpr Format kE2M3{2, 3, 1, Special::None};
constexpr Format kE3M2{3, 2, 3, Special::None};
constexpr Format kE5M2{5, 2, 15, Special::Ieee};
constexpr Format kE4M3{4, 3, 7, Special::AllOnes};
constexpr Format kE4M3Fnuz{4, 3, 8, Special::MinusZero};
constexpr Format kE5M2Fnuz{5, 2, 16, Special::MinusZero};

constexpr std::uint32_t kInfinity = 0x7F800000;
constexpr std::uint32_t kQuietNan = 0x7FC00000;
constexpr unsigned kMantissaBits = 23;
constexpr int kBias = 127;

/// Returns the bits of the float32 with the same value.
constexpr std::uint32_t widen(const Format& format, std::uint32_t bits) {
  const unsigned sign_at = format.exponent_bits + format.mantissa_bits;
  const std::uint32_t magnitude = bits & ((1U << sign_at) - 1);
  const std::uint32_t sign = (bits >> sign_at) << 31;
  if (format.special == Special::MinusZero && magnitude == 0) return sign == 0 ? 0 : kQuietNan;

  const std::uint32_t exponent = magnitude >> format.mantissa_bits;
  std::uint32_t mantissa = (magnitude & ((1U << format.mantissa_bits) - 1))
                           << (kMantissaBits - format.mantissa_bits);
  const bool is_last_exponent = exponent + 1 == 1U << format.exponent_bits;
  const bool is_nan = format.special == Special::AllOnes && magnitude + 1 == 1U << sign_at;
  if (is_nan || (format.special == Special::Ieee && is_last_exponent)) return sign | kInfinity | mantissa;
  if (magnitude == 0) return sign;

  int power = static_cast<int>(exponent) - format.bias;
  if (exponent == 0) {
    // The number is subnormal here. float32 has enough exponents to give it a leading one.
    for (++power; (mantissa >> kMantissaBits) == 0; --power) mantissa <<= 1;
    mantissa ^= 1U << kMantissaBits;
  }
  return sign | static_cast<std::uint32_t>(power + kBias) << kMantissaBits | mantissa;
}

template <std::size_t kSize>
constexpr std::array<std::uint32_t, kSize> table_of(Format format) {
  std::array<std::uint32_t, kSize> table{};
  for (std::uint32_t bits = 0; bits < kSize; ++bits) table[bits] = widen(format, bits);
  return table;
}

/// Powers of two without a sign, 2^-127 to 2^127, and a NaN.
constexpr std::array<std::uint32_t, 256> table_of_e8m0() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t bits = 0; bits < 255; ++bits) table[bits] = bits << kMantissaBits;
  table[0] = 1U << (kMantissaBits - 1);  // 2^-127 is a subnormal float32
  table[255] = kQuietNan;
  return table;
}

constexpr auto kTableE2M1 = table_of<16>(kE2M1);
constexpr auto kTableE2M3 = table_of<64>(kE2M3);
constexpr auto kTableE3M2 = table_of<64>(kE3M2);
constexpr auto kTableE5M2 = table_of<256>(kE5M2);
constexpr auto kTableE4M3 = table_of<256>(kE4M3);
constexpr auto kTableE4M3Fnuz = table_of<256>(kE4M3Fnuz);
constexpr auto kTableE5M2Fnuz = table_of<256>(kE5M2Fnuz);
constexpr auto kTableE8M0 = table_of_e8m0();

// Move elements as bits: a NaN that passes through a floating-point register may change.
void store(float* to, std::uint32_t bits) {
  std::memcpy(to, &bits, sizeof bits);
}

template <class T>
T load(const std::byte* from) {
  T value{};
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Each kernel below converts `count` elements, starting with the first of `from`.

void widen_bytes(const std::array<std::uint32_t, 256>& table, const std::byte* __restrict from,
                 float* __restrict to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) store(to + i, table[std::to_integer<std::size_t>(from[i])]);
}

/// Converts elements of kBits, packed from the lowest bit on, starting with the one at first_element.
template <std::size_t kBits, std::size_t kSize>
void widen_packed(const std::array<std::uint32_t, kSize>& table, const std::byte* __restrict from,
                  std::uint64_t first_element, float* __restrict to, std::size_t count) {
  static_assert(kSize == 1U << kBits);
  const auto element = [&](std::uint64_t at) {
    const std::uint64_t bit = at * kBits;
    std::uint32_t bits = std::to_integer<std::uint32_t>(from[bit / 8]) >> bit % 8;
    // Read the next byte only if the element reaches into it: there may be none.
    if (bit % 8 + kBits > 8) bits |= std::to_integer<std::uint32_t>(from[bit / 8 + 1]) << (8 - bit % 8);
    return table[bits & (kSize - 1)];
  };
  for (std::size_t i = 0; i < count; ++i) store(to + i, element(first_element + i));
}

/// All ones if the condition is true. Compilers do not turn this choice into a jump.
std::uint32_t mask_of(bool condition) {
  return 0U - static_cast<std::uint32_t>(condition);
}

std::uint32_t widen_half(std::uint32_t half) {
  constexpr std::uint32_t kSmallestNormal = 0x0400;
  constexpr std::uint32_t kHalfInfinity = 0x7C00;
  const std::uint32_t magnitude = half & 0x7FFF;
  const std::uint32_t normal = (magnitude << 13) + ((127 - 15) << kMantissaBits);
  // A subnormal is a whole multiple of the smallest one. The product is exact.
  const auto subnormal =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F);
  const std::uint32_t is_subnormal = mask_of(magnitude < kSmallestNormal);
  const std::uint32_t special = mask_of(magnitude >= kHalfInfinity) & kInfinity;
  return (subnormal & is_subnormal) | (normal & ~is_subnormal) | special | (half & 0x8000) << 16;
}

std::uint32_t widen_brain(std::uint32_t brain) {
  return brain << 16;
}

std::uint32_t narrow_double(double value) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(value));
}

template <class From, auto kConvert, std::size_t kCount>
void convert_block(const std::byte* from, float* to) {
  std::array<From, kCount> in;
  std::array<std::uint32_t, kCount> out;
  std::memcpy(in.data(), from, sizeof in);
  for (std::size_t i = 0; i < kCount; ++i) out[i] = kConvert(in[i]);
  std::memcpy(to, out.data(), sizeof out);
}

/// Converts blocks of one size: without -O3, GCC vectorizes only loops of known length.
template <class From, auto kConvert>
void convert_each(const std::byte* from, float* to, std::size_t count) {
  constexpr std::size_t kBlock = 32;
  for (; count >= kBlock; count -= kBlock) {
    convert_block<From, kConvert, kBlock>(from, to);
    from += sizeof(From) * kBlock;
    to += kBlock;
  }
  for (; count > 0; --count) {
    convert_block<From, kConvert, 1>(from, to);
    from += sizeof(From);
    ++to;
  }
}

}  // namespace

bool is_floating(Dtype dtype) {
  switch (dtype) {
    case Dtype::F4:
    case Dtype::F6_E2M3:
    case Dtype::F6_E3M2:
    case Dtype::F8_E5M2:
    case Dtype::F8_E4M3:
    case Dtype::F8_E8M0:
    case Dtype::F8_E4M3FNUZ:
    case Dtype::F8_E5M2FNUZ:
    case Dtype::F16:
    case Dtype::BF16:
    case Dtype::F32:
    case Dtype::F64: return true;
    default: return false;
  }
}

Result<void> convert_to_float32(Dtype dtype, std::span<const std::byte> from, std::span<float> to,
                                std::uint64_t first_element) {
  const std::uint64_t bits = bits_of(dtype);
  if (!is_floating(dtype)) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{} is not a floating-point type of real numbers", name_of(dtype)));
  }
  // The product can't overflow: no memory holds so many bytes.
  const std::uint64_t elements = from.size() * 8 / bits;
  if (first_element > elements || to.size() > elements - first_element) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{} bytes hold {} elements of {}, not {} from element {} on", from.size(),
                            elements, name_of(dtype), to.size(), first_element));
  }
  if (to.empty()) return {};
  const std::size_t count = to.size();
  const std::byte* begin = bits < 8 ? from.data() : from.data() + first_element * (bits / 8);
  switch (dtype) {
    case Dtype::F4: widen_packed<4>(kTableE2M1, begin, first_element, to.data(), count); break;
    case Dtype::F6_E2M3: widen_packed<6>(kTableE2M3, begin, first_element, to.data(), count); break;
    case Dtype::F6_E3M2: widen_packed<6>(kTableE3M2, begin, first_element, to.data(), count); break;
    case Dtype::F8_E5M2: widen_bytes(kTableE5M2, begin, to.data(), count); break;
    case Dtype::F8_E4M3: widen_bytes(kTableE4M3, begin, to.data(), count); break;
    case Dtype::F8_E8M0: widen_bytes(kTableE8M0, begin, to.data(), count); break;
    case Dtype::F8_E4M3FNUZ: widen_bytes(kTableE4M3Fnuz, begin, to.data(), count); break;
    case Dtype::F8_E5M2FNUZ: widen_bytes(kTableE5M2Fnuz, begin, to.data(), count); break;
    case Dtype::F16: convert_each<std::uint16_t, widen_half>(begin, to.data(), count); break;
    case Dtype::BF16: convert_each<std::uint16_t, widen_brain>(begin, to.data(), count); break;
    case Dtype::F32: std::memcpy(to.data(), begin, to.size_bytes()); break;
    case Dtype::F64: convert_each<double, narrow_double>(begin, to.data(), count); break;
    default: break;
  }
  return {};
}

}  // namespace stfs
