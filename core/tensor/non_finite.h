// Counts NaN and infinite elements of a tensor: a broken model has many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/format/dtype.h"

namespace stfs {

/// Numbers of elements. A C64 element is NaN if one of its parts is NaN, and infinite if one of its parts is
/// infinite. An element may be both, as in numpy.isnan() and numpy.isinf().
struct NonFinite {
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;  // both signs

  NonFinite& operator+=(const NonFinite& other) {
    nan += other.nan;
    infinite += other.infinite;
    return *this;
  }
  friend bool operator==(const NonFinite&, const NonFinite&) = default;
};

/// Returns true if the dtype has NaNs. Integers, F4 and F6 have none.
bool has_nan(Dtype dtype);
/// Returns true if the dtype has infinities: F8_E5M2 and the wider floating types. These types also have
/// NaNs.
bool has_infinity(Dtype dtype);

/// Counts both kinds. Zeros if the dtype has neither.
/// @param elements  whole elements, at any address.
NonFinite count_non_finite(Dtype dtype, std::span<const std::byte> elements);

}  // namespace stfs
