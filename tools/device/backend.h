// The interface of a device: memory, asynchronous copies, and a few kernels.
//
// There are two backends. `cpu` (cpu_backend.cc) is a real device with its queues; every test runs on it.
// `cuda` (cuda_backend.cc) is the second one. Opening a backend fails with the reason if it is not built in
// or if its driver is missing.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/format/dtype.h"
#include "tools/device/arena.h"
#include "tools/device/device.h"

namespace stfs::device {

/// Returns true if the error means that this process can't use a device any more: a kernel or the GPU itself
/// has failed, and CUDA returns that error from each later call. Only a new process can use the GPU again.
inline bool is_device_lost(const Error& error) {
  return error.errno_value == ENOTRECOVERABLE;
}

struct MemoryInfo {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// Memory of this process from which the device copies at full speed: page-locked for a GPU. The destructor
/// frees it.
class Staging {
 public:
  virtual ~Staging() = default;
  [[nodiscard]] virtual std::span<std::byte> bytes() = 0;
};

/// Work of one device, executed in order and asynchronously. One thread at a time may use a queue. The
/// destructor waits for unfinished work.
class Queue {
 public:
  virtual ~Queue() = default;

  /// Starts a copy into an arena of the same device. `from` must stay unchanged until a later mark is passed.
  /// It should be memory of a Staging; otherwise this call may wait.
  virtual Result<void> copy(std::span<const std::byte> from, Arena& to, std::uint64_t to_offset) = 0;
  /// Starts a conversion (conversion.h), element by element. The two ranges must not overlap and must begin
  /// at a whole element. Elements that the target cannot hold are added to the count of overflows().
  virtual Result<void> convert(Arena& from, ByteRange range, Dtype from_dtype, Arena& to,
                               std::uint64_t to_offset, Dtype to_dtype) = 0;
  /// Starts the digest (digest.h) of a range. The result is in *to once a later mark is passed.
  virtual Result<void> digest(Arena& arena, ByteRange range, std::uint64_t* to) = 0;

  /// A point after all work that was started so far.
  using Mark = std::uint64_t;
  virtual Result<Mark> mark() = 0;
  /// Returns true if all work before the mark is done. Fails with the first error of that work.
  virtual Result<bool> is_passed(Mark mark) = 0;
  virtual Result<void> wait_for(Mark mark) = 0;
  /// The count of overflows in all finished conversions.
  virtual Result<std::uint64_t> overflows() = 0;
};

/// Any number of threads may use a backend.
class Backend {
 public:
  virtual ~Backend() = default;

  /// @return ENODEV with the reason in one sentence: not built in, no driver, driver too old, no device,
  ///         no access, no such index.
  static Result<std::shared_ptr<Backend>> open(const Device& device);

  [[nodiscard]] virtual const Device& device() const = 0;
  /// If true, no copies are needed: readers may write tensors directly into host_bytes() of an arena.
  [[nodiscard]] virtual bool is_host() const = 0;
  virtual Result<MemoryInfo> memory() = 0;
  /// @return ENOMEM with the requested size and the free size.
  virtual Result<std::shared_ptr<Arena>> allocate(std::uint64_t size_bytes, bool is_shareable) = 0;
  virtual Result<std::unique_ptr<Staging>> allocate_staging(std::uint64_t size_bytes) = 0;
  virtual Result<std::unique_ptr<Queue>> open_queue() = 0;

  /// Maps read-only the memory behind a descriptor that another process's Arena::share() returned.
  /// @param descriptor  not needed after this call.
  virtual Result<std::shared_ptr<Arena>> adopt(UniqueFd descriptor, std::uint64_t size_bytes) = 0;
};

}  // namespace stfs::device
