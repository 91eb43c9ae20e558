// How many elements of a tensor are no numbers, or infinite: what a model that went wrong is full of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/format/dtype.h"

namespace stfs {

/// Elements. One of C64 counts where either of its parts does, and may count as both, as in numpy.isnan() and
/// numpy.isinf().
struct NonFinite {
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;  // of either sign

  NonFinite& operator+=(const NonFinite& other) {
    nan += other.nan;
    infinite += other.infinite;
    return *this;
  }
  friend bool operator==(const NonFinite&, const NonFinite&) = default;
};

/// Whether the dtype has a bit pattern that is a NaN. Integers, F4 and F6 have none.
bool has_nan(Dtype dtype);
/// The same of infinity, which only F8_E5M2 and what is wider have. Those have NaNs too.
bool has_infinity(Dtype dtype);

/// Zeros where the dtype has neither.
/// @param elements  whole ones, at any address.
NonFinite count_non_finite(Dtype dtype, std::span<const std::byte> elements);

}  // namespace stfs
