// The source of all bytes of views. Views read tensors only through it, so they do not need to know whether a
// tensor lies in the mount's only archive, in a shard or in a delta.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/archive/slice_reader.h"
#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "fs/tree/bytes.h"

namespace stfs {

/// Any thread may call. All bytes of one call are from before a commit, or all are from after it. EIO if the
/// bytes are gone.
struct ViewSource {
  /// Returns a range of a tensor, for a reply. The range must lie inside the tensor.
  std::function<Result<Bytes>(TensorId tensor, ByteRange part)> read;
  /// Copies the same bytes, from `offset` in the tensor, for all other uses.
  std::function<Result<void>(TensorId tensor, std::uint64_t offset, std::span<std::byte> to)> copy;
  /// Reads several ranges of a tensor. All of them come from the same state of the tensor.
  using Work = std::function<Result<void>(const TensorBytes& tensor)>;
  std::function<Result<void>(TensorId tensor, const Work& work)> read_parts;
  /// Returns a range of the archive's header. The range counts from the beginning of the file.
  std::function<Result<std::vector<std::byte>>(ByteRange range)> read_header;
};

}  // namespace stfs
