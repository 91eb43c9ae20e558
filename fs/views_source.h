// Where views get bytes from. A tensor's come through here and nowhere else, so that views do not know
// whether it lies in the one archive of the mount, in a shard or in a delta.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "core/byte_range.h"
#include "core/error.h"
#include "fs/bytes.h"

namespace stfs {

/// Any thread may call. Bytes come whole from before or after a commit; EIO where they are gone.
struct ViewSource {
  /// A range of a tensor, inside it.
  std::function<Result<Bytes>(std::uint32_t tensor, ByteRange part)> read;
  /// Several ranges of one tensor in one state of it. What `part` gives is valid until its next call.
  using Part = std::function<Result<std::span<const std::byte>>(ByteRange range)>;
  using Work = std::function<Result<void>(const Part& part)>;
  std::function<Result<void>(std::uint32_t tensor, const Work& work)> read_parts;
  /// Lets `copy` take what it wants out of all of a tensor, as it lies in memory; the rules of copy_guarded()
  /// hold for it (core/bus_guard.h). False where it does not lie there, or not all of it: read_parts tells.
  using Copy = std::function<void(std::span<const std::byte> tensor)>;
  std::function<bool(std::uint32_t tensor, const Copy& copy)> copy_from;
  /// A range of the archive's header, counted from the beginning of the file.
  std::function<Result<Bytes>(ByteRange range)> read_header;
};

}  // namespace stfs
