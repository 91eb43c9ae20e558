// A slice of a tensor that lies in a file: what is read of it, and in which pieces.
//
// Bytes are made ready in windows that lie around the slice's runs, so that neither a small slice of a large
// tensor reads the tensor, nor a slice of many small runs asks for each of them.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/storage/byte_source.h"
#include "core/tensor/slice.h"

namespace stfs {

/// Where a tensor's bytes come from.
struct TensorBytes {
  /// A range of them, inside slice.extent; what it gives is valid until its next call.
  std::function<Result<std::span<const std::byte>>(ByteRange range)> read;
  /// ByteSource::copy_from() of all of them; none where they do not lie in memory.
  std::function<bool(const ByteSource::Copy& copy)> copy_from{};
};

/// Copies a range of the slice's own bytes. Short runs are taken from where they lie; else it reads at a time
/// at most 512 KiB, or, where more of the range lies together in the tensor, exactly that.
/// @param range  inside the slice.
/// @param to     at least range.size_bytes.
/// @return the reader's error.
Result<void> read_slice(const Slice& slice, ByteRange range, const TensorBytes& tensor,
                        std::span<std::byte> to);

}  // namespace stfs
