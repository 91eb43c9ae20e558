// One piece of a device's memory that all tensors of an upload lie in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "tools/device/device.h"

namespace stfs::upload {

/// Where tensors begin in an arena, in bytes: what GPUs read fastest, and DLPack asks for.
inline constexpr std::uint64_t kTensorAlignment = 256;

/// Owned by whoever needs it last: uploads, tensors handed out, leases. Its memory goes with it. Any number
/// of threads may ask.
class Arena {
 public:
  virtual ~Arena() = default;

  [[nodiscard]] virtual const Device& device() const = 0;
  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
  /// Of the first byte, as the device sees it: of the CPU an ordinary pointer, of a GPU a CUdeviceptr.
  [[nodiscard]] virtual void* address() const = 0;
  /// The same as memory of this process; empty where that can't reach it (a GPU).
  [[nodiscard]] virtual std::span<std::byte> host_bytes() = 0;
  /// Cannot be written to by this process: an arena that was taken over from another one.
  [[nodiscard]] virtual bool is_read_only() const = 0;

  /// A descriptor by which another process can map it read-only (Backend::adopt()). Only of an arena that was
  /// allocated for that; no more writing afterwards: a CPU's is sealed by this.
  /// @return ENOTSUP where the arena can't be shared; the device's errors.
  virtual Result<UniqueFd> share() = 0;
};

}  // namespace stfs::upload
