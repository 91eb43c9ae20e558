// Reads a slice of a tensor from a file, in suitable pieces.
//
// Reads cover windows around the slice's runs. A small slice of a large tensor does not read the whole
// tensor, and a slice of many small runs does not read each run separately.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/storage/byte_source.h"
#include "core/tensor/slice.h"

namespace stfs {

/// The source of a tensor's bytes.
struct TensorBytes {
  /// Reads a range inside slice.extent. The returned bytes are valid until the next call.
  std::function<Result<std::span<const std::byte>>(ByteRange range)> read;
  /// ByteSource::copy_from() of the whole tensor; empty if its bytes are not in memory.
  std::function<bool(const ByteSource::Copy& copy)> copy_from{};
};

/// Copies a range of the slice's own bytes. Copies short runs directly from mapped memory, if copy_from
/// allows it. Otherwise each read covers at most 512 KiB, or exactly a longer contiguous part of the range.
/// @param range  inside the slice.
/// @param to     at least range.size_bytes.
/// @return the reader's error.
Result<void> read_slice(const Slice& slice, ByteRange range, const TensorBytes& tensor,
                        std::span<std::byte> to);

}  // namespace stfs
