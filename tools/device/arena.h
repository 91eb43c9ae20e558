// One contiguous piece of a device's memory that holds all tensors of an upload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "tools/device/device.h"

namespace stfs::device {

/// The alignment of tensors in an arena, in bytes: GPUs read it fastest, and DLPack requires it.
inline constexpr std::uint64_t kTensorAlignment = 256;
/// Rounds an offset up to this alignment.
constexpr std::uint64_t aligned_for_tensor(std::uint64_t offset) {
  return (offset + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

/// Shared by uploads, returned tensors and leases. The last owner frees the memory. Any number of threads may
/// call.
class Arena {
 public:
  virtual ~Arena() = default;

  [[nodiscard]] virtual const Device& device() const = 0;
  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
  /// The address of the first byte as the device sees it: an ordinary pointer on the CPU, a CUdeviceptr on a
  /// GPU.
  [[nodiscard]] virtual void* address() const = 0;
  /// The same bytes as memory of this process; empty if this process cannot reach them (a GPU).
  [[nodiscard]] virtual std::span<std::byte> host_bytes() = 0;
  /// Returns true if this process cannot write to the arena, because the arena was adopted from another
  /// process.
  [[nodiscard]] virtual bool is_read_only() const = 0;

  /// Returns a descriptor with which another process can map the arena read-only (Backend::adopt()). The
  /// arena must have been allocated as shareable. After this call no process may write to it: the call seals
  /// a CPU's arena.
  /// @return ENOTSUP if the arena cannot be shared; the device's errors.
  virtual Result<UniqueFd> share() = 0;
};

}  // namespace stfs::device
