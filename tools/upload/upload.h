// Moves what a plan says into the memory of its devices, in bounded memory of this process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tools/device/arena.h"
#include "tools/device/backend.h"
#include "tools/upload/plan.h"

namespace stfs::upload {

struct UploadOptions {
  unsigned readers = 0;  // threads; 0: min(cores, 8)
  /// Through the ring of slots also where readers could write to the arena directly (the CPU): for the tests.
  bool force_ring = false;
  /// Take a digest of every tensor's bytes on the device and compare it with the archive's.
  bool verify = false;
  /// Arenas that Arena::share() can hand to other processes.
  bool is_shareable = false;
  /// Where backends come from, and how large the ring is: for the tests.
  std::function<Result<std::shared_ptr<Backend>>(const Device&)> open_backend = Backend::open;
  std::uint64_t slot_bytes = 2U << 20U;  // a multiple of kTensorAlignment
  unsigned slots = 0;                    // 0: 16, where the disk has to be waited for 32
};

struct UploadProgress {
  std::uint64_t done_bytes = 0;  // that have arrived, read bytes
  std::uint64_t total_bytes = 0;
};

struct UploadReport {
  std::chrono::nanoseconds duration{};  // of moving the bytes alone; ends when all devices are done
  std::uint64_t read_bytes = 0;
  std::uint64_t cached_bytes = 0;  // of them in the page cache when it began
  std::uint64_t overflows = 0;     // elements that the new dtype could not hold
  std::uint64_t verified_bytes = 0;
};

/// A model in the memory of its devices. Tensors are views: whoever keeps one keeps its arena (a shared_ptr).
struct Resident {
  std::vector<std::shared_ptr<Arena>> arenas;  // one for each of plan.devices
  Plan plan;                                   // where each tensor is
  UploadReport report;
};

/// One upload under way. Its own threads work; any thread may ask.
class Upload {
 public:
  /// Says what does not fit before a byte moves (ENOMEM, with both figures), then begins.
  static Result<std::unique_ptr<Upload>> start(Plan plan, const UploadOptions& options);
  /// Cancels and waits for the threads.
  virtual ~Upload() = default;

  [[nodiscard]] virtual UploadProgress progress() const = 0;
  [[nodiscard]] virtual bool is_done() const = 0;
  /// The rest is not read; wait() gives ECANCELED.
  virtual void cancel() = 0;
  /// Once. Nothing is kept where it fails: ESTALE where an archive has changed, EIO, ECANCELED, EBADMSG where
  /// verification found another byte, the device's errors.
  virtual Result<Resident> wait() = 0;
};

}  // namespace stfs::upload
