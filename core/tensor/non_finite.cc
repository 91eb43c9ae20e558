// Counts bit patterns: one loop for each width, and for each dtype the meaning of a pattern.
//
// Signs are masked out. In the IEEE formats infinity is then one pattern, and every larger one is a NaN.
#include "core/tensor/non_finite.h"

#include <cstring>
#include <limits>
#include <type_traits>

namespace stfs {
namespace {

/// An IEEE format: infinity and NaN have all exponent bits set.
template <class Bits, Bits kInfinity>
struct Ieee {
  using Pattern = Bits;
  static constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();  // all bits but the sign
  static constexpr bool is_nan(Bits bits) { return static_cast<Bits>(bits & kMagnitude) > kInfinity; }
  static constexpr bool is_infinite(Bits bits) { return static_cast<Bits>(bits & kMagnitude) == kInfinity; }
};
using Half = Ieee<std::int16_t, 0x7c00>;
using Bfloat = Ieee<std::int16_t, 0x7f80>;
using Single = Ieee<std::int32_t, 0x7f800000>;
using Double = Ieee<std::int64_t, 0x7ff0000000000000>;
using Fp8E5M2 = Ieee<std::int8_t, 0x7c>;

/// A format without infinity, in which NaN is one pattern under a mask.
template <std::uint8_t kMask, std::uint8_t kNan>
struct OneNan {
  using Pattern = std::uint8_t;
  static constexpr bool is_nan(std::uint8_t bits) { return static_cast<std::uint8_t>(bits & kMask) == kNan; }
  static constexpr bool is_infinite(std::uint8_t) { return false; }
};
using Fp8E4M3 = OneNan<0x7f, 0x7f>;
using Fp8E8M0 = OneNan<0xff, 0xff>;
using Fp8Fnuz = OneNan<0xff, 0x80>;

struct ComplexSingle {
  using Pattern = std::uint64_t;
  static constexpr std::int32_t first(std::uint64_t bits) { return static_cast<std::int32_t>(bits); }
  static constexpr std::int32_t second(std::uint64_t bits) { return static_cast<std::int32_t>(bits >> 32); }
  static constexpr bool is_nan(std::uint64_t bits) {
    return Single::is_nan(first(bits)) | Single::is_nan(second(bits));
  }
  static constexpr bool is_infinite(std::uint64_t bits) {
    return Single::is_infinite(first(bits)) | Single::is_infinite(second(bits));
  }
};

/// Counts in kCount elements. Counters are as wide as the elements. kCount is a constant that fits a counter
/// and is a multiple of any vector's lanes, so that compilers vectorize the loop even at -O2.
template <class Format, std::size_t kCount>
NonFinite count_block(const std::byte* from) {
  using Pattern = typename Format::Pattern;
  using Counter = std::make_unsigned_t<Pattern>;
  static_assert(kCount <= std::numeric_limits<Counter>::max());
  Counter nan = 0;
  Counter infinite = 0;
  for (std::size_t at = 0; at < kCount; ++at) {
    Pattern bits;
    std::memcpy(&bits, from + at * sizeof(bits), sizeof(bits));
    nan = static_cast<Counter>(nan + (Format::is_nan(bits) ? 1 : 0));
    infinite = static_cast<Counter>(infinite + (Format::is_infinite(bits) ? 1 : 0));
  }
  return {nan, infinite};
}

template <class Format>
NonFinite count(std::span<const std::byte> elements) {
  constexpr std::size_t kItemBytes = sizeof(typename Format::Pattern);
  constexpr std::size_t kBlock = kItemBytes == 1 ? 224 : 1024;
  constexpr std::size_t kBlockBytes = kBlock * kItemBytes;
  NonFinite sum;
  std::size_t at = 0;
  for (; elements.size() - at >= kBlockBytes; at += kBlockBytes) {
    sum += count_block<Format, kBlock>(elements.data() + at);
  }
  for (; elements.size() - at >= kItemBytes; at += kItemBytes) {
    sum += count_block<Format, 1>(elements.data() + at);
  }
  return sum;
}

}  // namespace

bool has_nan(Dtype dtype) {
  switch (dtype) {
    case Dtype::F8_E4M3:
    case Dtype::F8_E8M0:
    case Dtype::F8_E4M3FNUZ:
    case Dtype::F8_E5M2FNUZ: return true;
    default: return has_infinity(dtype);
  }
}

bool has_infinity(Dtype dtype) {
  switch (dtype) {
    case Dtype::F8_E5M2:
    case Dtype::F16:
    case Dtype::BF16:
    case Dtype::F32:
    case Dtype::F64:
    case Dtype::C64: return true;
    default: return false;
  }
}

NonFinite count_non_finite(Dtype dtype, std::span<const std::byte> elements) {
  switch (dtype) {
    case Dtype::F8_E5M2: return count<Fp8E5M2>(elements);
    case Dtype::F8_E4M3: return count<Fp8E4M3>(elements);
    case Dtype::F8_E8M0: return count<Fp8E8M0>(elements);
    case Dtype::F8_E4M3FNUZ:
    case Dtype::F8_E5M2FNUZ: return count<Fp8Fnuz>(elements);
    case Dtype::F16: return count<Half>(elements);
    case Dtype::BF16: return count<Bfloat>(elements);
    case Dtype::F32: return count<Single>(elements);
    case Dtype::F64: return count<Double>(elements);
    case Dtype::C64: return count<ComplexSingle>(elements);
    default: return {};
  }
}

}  // namespace stfs
