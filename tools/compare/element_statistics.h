// Measures how much the elements of two tensors of one dtype and shape differ, as numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/format/dtype.h"

namespace stfs::tools {

/// Sums and largest values, computed in double. Partial results of one tensor are added with +=.
///
/// NaN and infinity: an element that is NaN or infinite in A or in B is counted in `not_finite`, and in
/// `different` if its bits differ. All other members leave it out, so they are always about numbers. A result
/// that exceeds the range of double is infinite. This can happen with F64 only.
struct ElementStatistics {
  /// The number of elements whose bits differ. 0 and -0 therefore differ, and two NaNs with different
  /// payloads also differ.
  std::uint64_t different = 0;
  std::uint64_t not_finite = 0;
  /// The largest |a - b|. For C64, here and below, |x| is the absolute value of a complex number.
  double largest_difference = 0;
  /// The largest |a - b| / max(|a|, |b|), from 0 to 2 apart from errors of rounding. Division by |a| alone
  /// would be infinite for each zero that became another number.
  double largest_relative_difference = 0;
  double squares_a = 0;           // sum of |a| * |a|
  double squares_b = 0;           // sum of |b| * |b|
  double squares_difference = 0;  // sum of |a - b| * |a - b|
  double product = 0;             // sum of a * b; for C64 the real part of a * conj(b)

  ElementStatistics& operator+=(const ElementStatistics& next);

  // The L2 norms of A, of B and of A - B.
  [[nodiscard]] double norm_a() const;
  [[nodiscard]] double norm_b() const;
  [[nodiscard]] double norm_difference() const;
  /// The cosine of the angle between A and B, from -1 to 1. Nothing if A or B has only zeros or no elements,
  /// because there is no angle then. Also nothing if a sum exceeds the range of double.
  [[nodiscard]] std::optional<double> cosine() const;
};

/// Compares two spans with the same number of elements. All dtypes are numbers here: BOOL is 0 or 1, and the
/// packed types of 4 and 6 bits have the order of convert_to_float32(). The difference of 64-bit integers is
/// computed from the integers; double only rounds the result.
/// @param a, b  whole elements, with the same number of bytes, at any address.
ElementStatistics compare_elements(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace stfs::tools
