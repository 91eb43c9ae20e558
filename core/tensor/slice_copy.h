// Copies the scattered bytes of a slice into one contiguous buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/byte_range.h"
#include "core/tensor/slice.h"

namespace stfs {

/// Copies a range of the slice's own bytes. Reads only bytes of the tensor inside slice.extent.
/// @param range   clipped to the slice.
/// @param tensor  all bytes of the tensor, mapped: the caller handles failing pages.
/// @param to      at least range.size_bytes.
/// @return the number of bytes copied.
std::uint64_t copy_slice(const Slice& slice, ByteRange range, std::span<const std::byte> tensor,
                         std::span<std::byte> to);

}  // namespace stfs
