// Where views get bytes from. A tensor's come through here and nowhere else, so that views do not know
// whether it lies in the one archive of the mount, in a shard or in a delta.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/byte_range.h"
#include "core/error.h"
#include "core/slice_reader.h"
#include "fs/bytes.h"

namespace stfs {

/// Any thread may call. Bytes come whole from before or after a commit; EIO where they are gone.
struct ViewSource {
  /// A range of a tensor, inside it.
  std::function<Result<Bytes>(std::uint32_t tensor, ByteRange part)> read;
  /// Several ranges of one tensor in one state of it.
  using Work = std::function<Result<void>(const TensorBytes& tensor)>;
  std::function<Result<void>(std::uint32_t tensor, const Work& work)> read_parts;
  /// A range of the archive's header, counted from the beginning of the file.
  std::function<Result<Bytes>(ByteRange range)> read_header;
};

}  // namespace stfs
