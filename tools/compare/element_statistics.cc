// Converts each type of elements to blocks of doubles, and adds these up in one way. The loops have known
// lengths and no branches, and each place in a vector has a separate sum, so that compilers vectorize them.
// Blocks with a NaN, an infinity or a new largest relative difference need more steps.
#include "tools/compare/element_statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/tensor/float_conversion.h"

namespace stfs::tools {
namespace {

constexpr std::size_t kBlock = 256;  // elements; few enough that a block stays in the first cache
constexpr std::size_t kLanes = 8;    // separate sums; a divisor of kBlock
constexpr double kLargestDouble = std::numeric_limits<double>::max();

/// Elements of A and B as doubles. Places beyond the tensors' end are zeros, which add nothing.
struct Block {
  std::array<double, kBlock> a{};  // for C64 the absolute value
  std::array<double, kBlock> b{};
  std::array<double, kBlock> apart{};    // |a - b|
  std::array<double, kBlock> product{};  // a * b
};

struct ComplexSingle {
  float real = 0;
  float imaginary = 0;
};

double magnitude(double real, double imaginary) {
  return std::sqrt(real * real + imaginary * imaginary);
}

/// Fills the block from elements of type T.
template <class T>
void fill(const std::array<T, kBlock>& a, const std::array<T, kBlock>& b, Block& block) {
  for (std::size_t i = 0; i < kBlock; ++i) {
    if constexpr (std::is_same_v<T, ComplexSingle>) {
      const double real_a = a[i].real;
      const double real_b = b[i].real;
      const double imaginary_a = a[i].imaginary;
      const double imaginary_b = b[i].imaginary;
      block.a[i] = magnitude(real_a, imaginary_a);
      block.b[i] = magnitude(real_b, imaginary_b);
      block.apart[i] = magnitude(real_a - real_b, imaginary_a - imaginary_b);
      block.product[i] = real_a * real_b + imaginary_a * imaginary_b;
    } else {
      block.a[i] = static_cast<double>(a[i]);
      block.b[i] = static_cast<double>(b[i]);
      if constexpr (std::is_integral_v<T> && sizeof(T) == 8) {
        // double may not hold the integers, but it holds small differences of them.
        using Unsigned = std::make_unsigned_t<T>;
        const auto larger = static_cast<Unsigned>(std::max(a[i], b[i]));
        block.apart[i] = static_cast<double>(larger - static_cast<Unsigned>(std::min(a[i], b[i])));
      } else {
        block.apart[i] = std::abs(block.a[i] - block.b[i]);
      }
      block.product[i] = block.a[i] * block.b[i];
    }
  }
}

using Lanes = std::array<double, kLanes>;

/// Separate sums and largest values for each lane. Element i of a block is in lane i % kLanes.
struct LaneSums {
  Lanes largest{};
  Lanes squares_a{};
  Lanes squares_b{};
  Lanes squares_apart{};
  Lanes product{};

  void add(const Block& block, std::size_t at, std::size_t lane) {
    largest[lane] = largest[lane] < block.apart[at] ? block.apart[at] : largest[lane];
    squares_a[lane] += block.a[at] * block.a[at];
    squares_b[lane] += block.b[at] * block.b[at];
    squares_apart[lane] += block.apart[at] * block.apart[at];
    product[lane] += block.product[at];
  }
};

class BlockSums {
 public:
  /// Sets elements to zero that are not finite.
  void add(Block& block) {
    if (!is_plain(block)) {
      drop_not_finite(block);
      note_larger_relative(block);
    }
    LaneSums sums = sums_;  // a copy that no pointer refers to: only then can compilers vectorize the loop
    for (std::size_t at = 0; at < kBlock; at += kLanes) {
      for (std::size_t i = 0; i < kLanes; ++i) sums.add(block, at + i, i);
    }
    sums_ = sums;
  }

  [[nodiscard]] ElementStatistics total() const {
    ElementStatistics total{.not_finite = not_finite_, .largest_relative_difference = largest_relative_};
    for (std::size_t i = 0; i < kLanes; ++i) {
      total.largest_difference = std::max(total.largest_difference, sums_.largest[i]);
      total.squares_a += sums_.squares_a[i];
      total.squares_b += sums_.squares_b[i];
      total.squares_difference += sums_.squares_apart[i];
      total.product += sums_.product[i];
    }
    return total;
  }

 private:
  /// Returns true if all elements are finite, and no relative difference is larger than all before the block.
  /// Ignores possible errors of rounding: otherwise all blocks of a scaled tensor would need the additional
  /// steps.
  [[nodiscard]] bool is_plain(const Block& block) const {
    const double relative = largest_relative_ * (1 + 4 * std::numeric_limits<double>::epsilon());
    Lanes special{};
    for (std::size_t at = 0; at < kBlock; at += kLanes) {
      for (std::size_t i = 0; i < kLanes; ++i) {
        const double a = std::abs(block.a[at + i]);
        const double b = std::abs(block.b[at + i]);
        // If a or b is not finite, then `apart` is NaN or infinite, and so the excess is NaN or infinite.
        const double excess = block.apart[at + i] - relative * (a < b ? b : a);
        special[i] += excess <= 0 ? 0.0 : 1.0;
      }
    }
    return std::ranges::count(special, 0.0) == kLanes;
  }

  void drop_not_finite(Block& block) {
    for (std::size_t at = 0; at < kBlock; ++at) {
      const bool is_finite =
          std::abs(block.a[at]) <= kLargestDouble && std::abs(block.b[at]) <= kLargestDouble;
      not_finite_ += is_finite ? 0U : 1U;
      block.a[at] = is_finite ? block.a[at] : 0;
      block.b[at] = is_finite ? block.b[at] : 0;
      block.apart[at] = is_finite ? block.apart[at] : 0;
      block.product[at] = is_finite ? block.product[at] : 0;
    }
  }

  void note_larger_relative(const Block& block) {
    for (std::size_t at = 0; at < kBlock; ++at) {
      const double larger = std::max(std::abs(block.a[at]), std::abs(block.b[at]));
      if (block.apart[at] <= largest_relative_ * larger) continue;
      largest_relative_ = std::max(largest_relative_, block.apart[at] / larger);
    }
  }

  LaneSums sums_;
  double largest_relative_ = 0;
  std::uint64_t not_finite_ = 0;
};

/// Adds the values of `count` elements of type T.
template <class T>
void add_values(const void* a, const void* b, std::size_t count, BlockSums& sums) {
  Block block;
  std::array<T, kBlock> elements_a{};
  std::array<T, kBlock> elements_b{};
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t size_bytes = std::min(kBlock, count - at) * sizeof(T);
    if (size_bytes < sizeof elements_a) {
      elements_a = {};
      elements_b = {};
    }
    std::memcpy(elements_a.data(), static_cast<const std::byte*>(a) + at * sizeof(T), size_bytes);
    std::memcpy(elements_b.data(), static_cast<const std::byte*>(b) + at * sizeof(T), size_bytes);
    fill(elements_a, elements_b, block);
    sums.add(block);
  }
}

/// Counts elements whose bits differ.
template <class Bits>
std::uint64_t count_different(const void* a, const void* b, std::size_t count) {
  std::uint64_t different = 0;
  for (std::size_t at = 0; at < count; ++at) {
    Bits x{};
    Bits y{};
    std::memcpy(&x, static_cast<const std::byte*>(a) + at * sizeof x, sizeof x);
    std::memcpy(&y, static_cast<const std::byte*>(b) + at * sizeof y, sizeof y);
    different += x == y ? 0U : 1U;
  }
  return different;
}

/// Counts the elements that differ, and compares their values.
template <class T, class Bits>
ElementStatistics compare_as(std::span<const std::byte> a, std::span<const std::byte> b) {
  static_assert(sizeof(T) == sizeof(Bits));
  const std::size_t count = a.size() / sizeof(T);
  BlockSums sums;
  add_values<T>(a.data(), b.data(), count, sums);
  ElementStatistics statistics = sums.total();
  statistics.different = count_different<Bits>(a.data(), b.data(), count);
  return statistics;
}

/// Compares floating types that float32 holds exactly, slice by slice. The conversion gives different bits to
/// different elements, so the converted bits are compared.
ElementStatistics compare_converted(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b) {
  // Two slices fit the first cache. The bits of a slice are whole bytes for every dtype.
  constexpr std::size_t kSlice = 2048;
  const std::size_t bits = bits_of(dtype);
  const std::size_t count = a.size() * 8 / bits;
  std::array<float, kSlice> floats_a;
  std::array<float, kSlice> floats_b;
  BlockSums sums;
  std::uint64_t different = 0;
  for (std::size_t at = 0; at < count; at += kSlice) {
    const std::size_t size = std::min(kSlice, count - at);
    const std::size_t offset = at * bits / 8;
    // The conversion cannot fail: the dtype is floating, and the bytes hold that many elements.
    static_cast<void>(convert_to_float32(dtype, a.subspan(offset), std::span(floats_a).first(size)));
    static_cast<void>(convert_to_float32(dtype, b.subspan(offset), std::span(floats_b).first(size)));
    add_values<float>(floats_a.data(), floats_b.data(), size, sums);
    different += count_different<std::uint32_t>(floats_a.data(), floats_b.data(), size);
  }
  ElementStatistics statistics = sums.total();
  statistics.different = different;
  return statistics;
}

}  // namespace

ElementStatistics& ElementStatistics::operator+=(const ElementStatistics& next) {
  different += next.different;
  not_finite += next.not_finite;
  largest_difference = std::max(largest_difference, next.largest_difference);
  largest_relative_difference = std::max(largest_relative_difference, next.largest_relative_difference);
  squares_a += next.squares_a;
  squares_b += next.squares_b;
  squares_difference += next.squares_difference;
  product += next.product;
  return *this;
}

double ElementStatistics::norm_a() const {
  return std::sqrt(squares_a);
}

double ElementStatistics::norm_b() const {
  return std::sqrt(squares_b);
}

double ElementStatistics::norm_difference() const {
  return std::sqrt(squares_difference);
}

std::optional<double> ElementStatistics::cosine() const {
  const double cosine = product / norm_a() / norm_b();
  if (!std::isfinite(cosine) || !std::isfinite(squares_a) || !std::isfinite(squares_b)) return std::nullopt;
  return std::clamp(cosine, -1.0, 1.0);  // rounding may exceed the range by a few units of the last place
}

ElementStatistics compare_elements(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b) {
  switch (dtype) {
    case Dtype::BOOL:
    case Dtype::U8: return compare_as<std::uint8_t, std::uint8_t>(a, b);
    case Dtype::I8: return compare_as<std::int8_t, std::uint8_t>(a, b);
    case Dtype::I16: return compare_as<std::int16_t, std::uint16_t>(a, b);
    case Dtype::U16: return compare_as<std::uint16_t, std::uint16_t>(a, b);
    case Dtype::I32: return compare_as<std::int32_t, std::uint32_t>(a, b);
    case Dtype::U32: return compare_as<std::uint32_t, std::uint32_t>(a, b);
    case Dtype::I64: return compare_as<std::int64_t, std::uint64_t>(a, b);
    case Dtype::U64: return compare_as<std::uint64_t, std::uint64_t>(a, b);
    case Dtype::F32: return compare_as<float, std::uint32_t>(a, b);
    case Dtype::F64: return compare_as<double, std::uint64_t>(a, b);
    case Dtype::C64: return compare_as<ComplexSingle, std::uint64_t>(a, b);
    case Dtype::F4:
    case Dtype::F6_E2M3:
    case Dtype::F6_E3M2:
    case Dtype::F8_E5M2:
    case Dtype::F8_E4M3:
    case Dtype::F8_E8M0:
    case Dtype::F8_E4M3FNUZ:
    case Dtype::F8_E5M2FNUZ:
    case Dtype::F16:
    case Dtype::BF16: return compare_converted(dtype, a, b);
  }
  return {};
}

}  // namespace stfs::tools
