// Counts NaN and infinite elements of a tensor: a broken model has many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/format/dtype.h"

namespace stfs {

/// Numbers of elements. A C64 element counts if either of its parts does, and may count as both, as in
/// numpy.isnan() and numpy.isinf().
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

/// Whether a bit pattern of the dtype is a NaN. Integers, F4 and F6 have none.
bool has_nan(Dtype dtype);
/// Whether a bit pattern of the dtype is infinity. Only F8_E5M2 and wider floating types have it, and those
/// have NaNs too.
bool has_infinity(Dtype dtype);

/// Counts both kinds. Zeros if the dtype has neither.
/// @param elements  whole elements, at any address.
NonFinite count_non_finite(Dtype dtype, std::span<const std::byte> elements);

}  // namespace stfs
