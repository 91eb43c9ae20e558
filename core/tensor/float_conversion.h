// The floating types of the format as float32, for people whose NumPy has no bfloat16, fp8 or fp4.
//
// Exact, and so the same as everybody else's, for every value of every type but F64: infinities,
// subnormal numbers and the sign of zero included. A NaN stays one with its sign, and where its type has
// several, with its bits at the top of the mantissa; F64 is rounded to the nearest, ties to even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/error.h"
#include "core/format/dtype.h"

namespace stfs {

/// Whether convert_to_float32 takes it: the floating types of one real number (not C64).
bool is_floating(Dtype dtype);

/// Converts to.size() elements. Elements of less than a byte lie in the bytes from the lowest bit on: that
/// is how torch packs F4 (torch/headeronly/util/Float4_e2m1fn_x2.h: "val1 : val0" from MSB to LSB). For F6
/// nobody has laid it down, neither the format nor OCP ("The layout of the block in physical memory is not
/// prescribed", MX specification 1.0); this is F4's order carried on.
/// @param from  any alignment; element 0 begins with its first bit.
/// @param first_element  of `from` to convert, so that a place in the middle of a byte can be had.
/// @return InvalidArgument where the dtype is none of these, or `from` ends too early.
Result<void> convert_to_float32(Dtype dtype, std::span<const std::byte> from, std::span<float> to,
                                std::uint64_t first_element = 0);

}  // namespace stfs
