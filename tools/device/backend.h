// What the engine asks of a device: memory, copies that go on by themselves, and a few kernels.
//
// Two of them: `cpu` (cpu_backend.cc), a real device with queues of its own that every test runs on, and
// `cuda` (cuda_backend.cc). A backend that is not built in, or whose driver is missing, says so when it is
// opened.
#pragma once

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

namespace stfs::upload {

struct MemoryInfo {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// Memory of this process that a device's copies read at full speed: page-locked for a GPU. Freed with it.
class Staging {
 public:
  virtual ~Staging() = default;
  [[nodiscard]] virtual std::span<std::byte> bytes() = 0;
};

/// Work of one device, done in order, beside the caller. One thread at a time. Its destructor waits for what
/// is under way.
class Queue {
 public:
  virtual ~Queue() = default;

  /// Starts a copy into an arena of the same device. `from` must stay as it is until a later mark is passed;
  /// it should lie in a Staging, else the copy may wait.
  virtual Result<void> copy(std::span<const std::byte> from, Arena& to, std::uint64_t to_offset) = 0;
  /// Starts a conversion (conversion.h), element by element. The ranges don't overlap and begin at a whole
  /// element. Elements that the target cannot hold are added to the count that overflows() tells.
  virtual Result<void> convert(Arena& from, ByteRange range, Dtype from_dtype, Arena& to,
                               std::uint64_t to_offset, Dtype to_dtype) = 0;
  /// Starts taking the digest (digest.h) of a range; it is in *to once a later mark is passed.
  virtual Result<void> digest(Arena& arena, ByteRange range, std::uint64_t* to) = 0;

  /// A point behind everything that was started so far.
  using Mark = std::uint64_t;
  virtual Result<Mark> mark() = 0;
  /// Whether all before it is done; the first error of that work.
  virtual Result<bool> is_passed(Mark mark) = 0;
  virtual Result<void> wait_for(Mark mark) = 0;
  /// Of all conversions that are done.
  virtual Result<std::uint64_t> overflows() = 0;
};

/// Any number of threads.
class Backend {
 public:
  virtual ~Backend() = default;

  /// @return ENODEV with one sentence that says why: not built in, no driver, too old a driver, no device, no
  ///         access, no such index.
  static Result<std::shared_ptr<Backend>> open(const Device& device);

  [[nodiscard]] virtual const Device& device() const = 0;
  /// Copies can be left out: what readers write into host_bytes() of an arena is where it belongs.
  [[nodiscard]] virtual bool is_host() const = 0;
  virtual Result<MemoryInfo> memory() = 0;
  /// @return ENOMEM with what was asked for and what is free.
  virtual Result<std::shared_ptr<Arena>> allocate(std::uint64_t size_bytes, bool is_shareable) = 0;
  virtual Result<std::unique_ptr<Staging>> allocate_staging(std::uint64_t size_bytes) = 0;
  virtual Result<std::unique_ptr<Queue>> open_queue() = 0;

  /// Maps what another process' Arena::share() gave, read-only.
  /// @param descriptor  no longer needed afterwards.
  virtual Result<std::shared_ptr<Arena>> adopt(UniqueFd descriptor, std::uint64_t size_bytes) = 0;
};

}  // namespace stfs::upload
