// Where views get bytes from. A tensor's come through here and nowhere else, so that views do not know
// whether it lies in the one archive of the mount, in a shard or in a delta.
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

/// Any thread may call. Bytes come whole from before or after a commit; EIO where they are gone.
struct ViewSource {
  /// A range of a tensor, inside it, for a reply.
  std::function<Result<Bytes>(std::uint32_t tensor, ByteRange part)> read;
  /// The same bytes, from `offset` in the tensor on, for all other uses.
  std::function<Result<void>(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> to)> copy;
  /// Several ranges of one tensor in one state of it.
  using Work = std::function<Result<void>(const TensorBytes& tensor)>;
  std::function<Result<void>(std::uint32_t tensor, const Work& work)> read_parts;
  /// A range of the archive's header, counted from the beginning of the file.
  std::function<Result<std::vector<std::byte>>(ByteRange range)> read_header;
};

}  // namespace stfs
