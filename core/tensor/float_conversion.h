// Converts the format's floating types to float32, for users whose NumPy has no bfloat16, fp8 or fp4.
//
// The conversion is exact for every value of every type except F64, including infinities, subnormal numbers
// and the sign of zero. A NaN stays a NaN with its sign. If its type has several NaNs, the bits go to the top
// of the mantissa. F64 is rounded to the nearest, ties to even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/error.h"
#include "core/format/dtype.h"

namespace stfs {

/// Returns true if convert_to_float32() accepts the dtype: a floating type of one real number (not C64).
bool is_floating(Dtype dtype);

/// Converts to.size() elements. Elements smaller than a byte fill the bytes from the lowest bit on. torch
/// packs F4 in this order (torch/headeronly/util/Float4_e2m1fn_x2.h: "val1 : val0" from MSB to LSB). Neither
/// the format nor OCP specifies an order for F6 ("The layout of the block in physical memory is not
/// prescribed", MX specification 1.0); this uses the order of F4.
/// @param from  any alignment; element 0 begins with its first bit.
/// @param first_element  the first element of `from` to convert; it may start in the middle of a byte.
/// @return InvalidArgument if is_floating(dtype) is false, or if `from` is too short.
Result<void> convert_to_float32(Dtype dtype, std::span<const std::byte> from, std::span<float> to,
                                std::uint64_t first_element = 0);

}  // namespace stfs
