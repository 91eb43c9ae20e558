// Converts one floating-point number from any dtype to another, on the CPU and on devices. The code uses
// integer arithmetic only, so every device gives the same bits.
//
// Numbers are rounded to the nearest, ties to even. A number that is too large for the target becomes
// infinity, or NaN if the target has no infinity (F8_E4M3 and the FNUZ kinds), and is counted. PyTorch's
// Tensor.to() and ml_dtypes give the same results. A NaN stays a NaN and keeps its sign. Its other bits stay
// at the top of the mantissa if the target has room for them, as core/tensor/float_conversion.h puts them
// there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/device/on_devices.h"

namespace stfs::device {

/// The bit fields of a dtype, and the meaning of its largest patterns.
struct FloatFormat {
  enum class Special : std::uint8_t {
    Ieee,       // infinity, and NaNs above it
    AllOnes,    // the largest pattern of each sign is NaN ("fn")
    MinusZero,  // the pattern of -0 is the only NaN ("fnuz")
    Power,      // a power of two without a sign; the largest pattern is NaN (E8M0)
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

/// The value is sign * mantissa * 2^(exponent - 52). The mantissa's bit 52 is set unless the number is 0. The
/// mantissa of a NaN has its other bits, from bit 51 down; they are never 0.
struct UnpackedFloat {
  enum class Kind : std::uint8_t { Finite, Infinite, Nan };
  bool is_negative = false;
  Kind kind = Kind::Finite;
  int exponent = 0;
  std::uint64_t mantissa = 0;
};

inline constexpr unsigned kUnpackedBits = 52;  // the mantissa bits of F64, the longest format
inline constexpr std::uint64_t kQuietNan = std::uint64_t{1} << (kUnpackedBits - 1);

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
    to.mantissa = kQuietNan;
    return to;
  }
  const std::uint64_t exponent = magnitude >> format.mantissa_bits;
  const std::uint64_t mantissa = magnitude & ((std::uint64_t{1} << format.mantissa_bits) - 1);
  to.mantissa = mantissa << (kUnpackedBits - format.mantissa_bits);
  const bool has_nan_on_top = format.special == Special::AllOnes || format.special == Special::Power;
  if (has_nan_on_top && magnitude == format.magnitude_mask()) {
    to.kind = Kind::Nan;
    if (to.mantissa == 0) to.mantissa = kQuietNan;
    return to;
  }
  if (format.special == Special::Ieee && exponent == last_exponent) {
    to.kind = mantissa == 0 ? Kind::Infinite : Kind::Nan;
    return to;
  }
  const bool has_leading_one = exponent != 0 || format.special == Special::Power;
  to.exponent = (has_leading_one ? static_cast<int>(exponent) : 1) - format.bias;
  if (has_leading_one) to.mantissa |= std::uint64_t{1} << kUnpackedBits;
  if (to.mantissa == 0) return to;
  for (; (to.mantissa >> kUnpackedBits) == 0; to.mantissa <<= 1U) --to.exponent;
  return to;
}

/// @param format  not E8M0.
/// @param overflow  set to true if the target cannot hold the number or infinity; otherwise unchanged.
STFS_ON_DEVICES constexpr std::uint64_t pack_float(const FloatFormat& format, const UnpackedFloat& from,
                                                   bool& overflow) {
  using Kind = UnpackedFloat::Kind;
  using Special = FloatFormat::Special;
  const std::uint64_t sign = std::uint64_t{from.is_negative} << format.sign_at();
  const std::uint64_t infinity = ((std::uint64_t{1} << format.exponent_bits) - 1) << format.mantissa_bits;
  const std::uint64_t narrow_mantissa = from.mantissa >> (kUnpackedBits - format.mantissa_bits);
  const bool has_room = narrow_mantissa << (kUnpackedBits - format.mantissa_bits) == from.mantissa;
  const std::uint64_t ieee_nan =
      sign | infinity | (has_room ? narrow_mantissa : std::uint64_t{1} << (format.mantissa_bits - 1));
  const std::uint64_t other_nan = format.special == Special::MinusZero ? std::uint64_t{1} << format.sign_at()
                                                                       : sign | format.magnitude_mask();
  const std::uint64_t nan = format.special == Special::Ieee ? ieee_nan : other_nan;
  if (from.kind == Kind::Nan) return nan;
  const std::uint64_t too_large = format.special == Special::Ieee ? sign | infinity : nan;
  if (from.kind == Kind::Infinite) {
    overflow = overflow || format.special != Special::Ieee;
    return too_large;
  }
  // A number below the smallest normal exponent is shifted right: one more bit is dropped for each power of
  // two.
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
  // Adding the leading one (if the number still has one) increments the exponent by one. A rounding carry has
  // the same effect.
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

}  // namespace stfs::device

#if !defined(__CUDACC__)
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/dtype.h"

namespace stfs::device {

/// Returns the format of a floating dtype of whole bytes; nothing for other dtypes.
std::optional<FloatFormat> float_format_of(Dtype dtype);

/// Returns true for BF16, F16, F32 and the fp8 kinds, except E8M0, which has no zero and no sign.
bool is_conversion_target(Dtype dtype);
/// The names of all conversion targets.
std::vector<std::string> conversion_target_names();
/// Returns the conversion target that the text names (parse_dtype()): "BF16", "bf16", "bfloat16".
/// @return EINVAL if there is none; the message has the names of all targets.
Result<Dtype> conversion_target_named(std::string_view name);

/// Converts all elements in `from`. `from_dtype` must have a format, `to_dtype` must be a conversion target.
/// @param to  room for as many elements. `to` and `from` may have any alignment.
/// @return the number of elements that the target could not hold.
std::uint64_t convert_elements(Dtype from_dtype, std::span<const std::byte> from, Dtype to_dtype,
                               std::span<std::byte> to);

}  // namespace stfs::device
#endif
