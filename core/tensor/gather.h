// The bytes of a slice, copied from where they lie to one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/byte_range.h"
#include "core/tensor/slice.h"

namespace stfs {

/// Copies a range of the slice's own bytes; what it reads of the tensor lies within slice.extent.
/// @param range   clipped to the slice.
/// @param tensor  all bytes of the tensor, mapped: a failing page is the caller's to catch.
/// @param to      at least range.size_bytes.
/// @return bytes copied.
std::uint64_t gather(const Slice& slice, ByteRange range, std::span<const std::byte> tensor,
                     std::span<std::byte> to);

}  // namespace stfs
