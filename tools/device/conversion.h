// One floating number of any dtype as another one, on the CPU and on devices: whole numbers only, so that
// every device gives the same bits.
//
// Rounded to the nearest, ties to even. A number too large for the target becomes infinity, or NaN where
// the target has none (F8_E4M3 and the FNUZ kinds), and is counted: what PyTorch's Tensor.to() and ml_dtypes
// give. A NaN stays one and keeps its sign; of its bits only that is promised.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/device/on_devices.h"

namespace stfs::upload {

/// Where a dtype keeps what, and what its largest patterns mean.
struct FloatFormat {
  enum class Special : std::uint8_t {
    Ieee,       // infinity, and NaN above it
    AllOnes,    // the largest pattern of each sign is NaN ("fn")
    MinusZero,  // what would be -0 is the only NaN ("fnuz")
    Power,      // a power of two without a sign, the largest pattern is NaN (E8M0)
  };
  unsigned exponent_bits = 0;
  unsigned mantissa_bits = 0;
  int bias = 0;
  Special special = Special::Ieee;

  [[nodiscard]] STFS_ON_DEVICES constexpr unsigned sign_at() const { return exponent_bits + mantissa_bits; }
  [[nodiscard]] STFS_ON_DEVICES constexpr std::uint64_t magnitude_mask() const {
    return (std::uint64_t{1} << sign_at()) - 1;
  }
};

/// sign * mantissa * 2^(exponent - 52); the mantissa's bit 52 is set unless the number is 0.
struct UnpackedFloat {
  enum class Kind : std::uint8_t { Finite, Infinite, Nan };
  bool is_negative = false;
  Kind kind = Kind::Finite;
  int exponent = 0;
  std::uint64_t mantissa = 0;
};

inline constexpr unsigned kUnpackedBits = 52;  // as many as the longest, F64, has

STFS_ON_DEVICES constexpr UnpackedFloat unpack_float(const FloatFormat& format, std::uint64_t bits) {
  using Kind = UnpackedFloat::Kind;
  using Special = FloatFormat::Special;
  const std::uint64_t magnitude = bits & format.magnitude_mask();
  const std::uint64_t last_exponent = (std::uint64_t{1} << format.exponent_bits) - 1;
  UnpackedFloat to;
  to.is_negative = format.special != Special::Power && (bits >> format.sign_at() & 1) != 0;
  if (format.special == Special::MinusZero && to.is_negative && magnitude == 0) {
    to.is_negative = false;
    to.kind = Kind::Nan;
    return to;
  }
  const bool has_nan_on_top = format.special == Special::AllOnes || format.special == Special::Power;
  if (has_nan_on_top && magnitude == format.magnitude_mask()) {
    to.kind = Kind::Nan;
    return to;
  }
  const std::uint64_t exponent = magnitude >> format.mantissa_bits;
  const std::uint64_t mantissa = magnitude & ((std::uint64_t{1} << format.mantissa_bits) - 1);
  if (format.special == Special::Ieee && exponent == last_exponent) {
    to.kind = mantissa == 0 ? Kind::Infinite : Kind::Nan;
    return to;
  }
  const bool has_leading_one = exponent != 0 || format.special == Special::Power;
  to.exponent = (has_leading_one ? static_cast<int>(exponent) : 1) - format.bias;
  to.mantissa = mantissa << (kUnpackedBits - format.mantissa_bits);
  if (has_leading_one) to.mantissa |= std::uint64_t{1} << kUnpackedBits;
  if (to.mantissa == 0) return to;
  for (; (to.mantissa >> kUnpackedBits) == 0; to.mantissa <<= 1U) --to.exponent;
  return to;
}

/// @param format  not E8M0.
/// @param overflow  set to true where a number or infinity can't be held.
STFS_ON_DEVICES constexpr std::uint64_t pack_float(const FloatFormat& format, const UnpackedFloat& from,
                                                   bool& overflow) {
  using Kind = UnpackedFloat::Kind;
  using Special = FloatFormat::Special;
  const std::uint64_t sign = std::uint64_t{from.is_negative} << format.sign_at();
  const std::uint64_t infinity = ((std::uint64_t{1} << format.exponent_bits) - 1) << format.mantissa_bits;
  const std::uint64_t ieee_nan = sign | infinity | std::uint64_t{1} << (format.mantissa_bits - 1);
  const std::uint64_t other_nan = format.special == Special::MinusZero ? std::uint64_t{1} << format.sign_at()
                                                                       : sign | format.magnitude_mask();
  const std::uint64_t nan = format.special == Special::Ieee ? ieee_nan : other_nan;
  if (from.kind == Kind::Nan) return nan;
  const std::uint64_t too_large = format.special == Special::Ieee ? sign | infinity : nan;
  if (from.kind == Kind::Infinite) {
    overflow = overflow || format.special != Special::Ieee;
    return too_large;
  }
  // Below the smallest exponent the number loses bits from the left, as many as it is below.
  const int exponent = from.exponent + format.bias;
  unsigned drop_bits = kUnpackedBits - format.mantissa_bits;
  if (exponent < 1) drop_bits += static_cast<unsigned>(1 - exponent);
  std::uint64_t magnitude = 0;
  if (drop_bits == 0) {
    magnitude = from.mantissa;
  } else if (drop_bits <= kUnpackedBits + 1) {
    const std::uint64_t is_odd = from.mantissa >> drop_bits & 1;
    magnitude = (from.mantissa + (std::uint64_t{1} << (drop_bits - 1)) - 1 + is_odd) >> drop_bits;
  }
  // The leading one, where there still is one, counts the exponent up by one; so does a carry of the
  // rounding.
  if (exponent > 1 && from.mantissa != 0)
    magnitude += static_cast<std::uint64_t>(exponent - 1) << format.mantissa_bits;
  std::uint64_t largest = format.magnitude_mask();
  if (format.special == Special::Ieee) largest = infinity - 1;
  if (format.special == Special::AllOnes) largest -= 1;
  if (magnitude > largest) {
    overflow = true;
    return too_large;
  }
  if (format.special == Special::MinusZero && magnitude == 0) return 0;
  return sign | magnitude;
}

STFS_ON_DEVICES constexpr std::uint64_t convert_float(const FloatFormat& from, const FloatFormat& to,
                                                      std::uint64_t bits, bool& overflow) {
  return pack_float(to, unpack_float(from, bits), overflow);
}

}  // namespace stfs::upload

#if !defined(__CUDACC__)
#include <optional>
#include <span>

#include "core/format/dtype.h"

namespace stfs::upload {

/// Of the floating dtypes of whole bytes; nothing for the others.
std::optional<FloatFormat> float_format_of(Dtype dtype);

/// BF16, F16, F32 and the fp8 kinds but E8M0, which has no zero and no sign.
bool is_conversion_target(Dtype dtype);

/// Converts from.size() / size of an element of them, one that has a format to one that is a target.
/// @param to  as many; any alignment, here and of `from`.
/// @return how many the target could not hold.
std::uint64_t convert_elements(Dtype from_dtype, std::span<const std::byte> from, Dtype to_dtype,
                               std::span<std::byte> to);

}  // namespace stfs::upload
#endif
