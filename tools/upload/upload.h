// Uploads tensors into the memory of devices according to a plan. Uses bounded memory of this process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/work.h"
#include "tools/device/arena.h"
#include "tools/device/backend.h"
#include "tools/upload/plan.h"

namespace stfs::upload {

/// The number of threads that read by default: min(cores, 8).
unsigned default_readers();

struct UploadOptions {
  unsigned readers = 0;  // number of threads; 0: default_readers()
  /// For tests: uses the ring of slots even if readers could write to the arena directly (the CPU).
  bool force_ring = false;
  /// Takes a digest of every tensor's bytes on the device and compares it with the archive's digest.
  bool verify = false;
  /// Allocates arenas that Arena::share() can share with other processes.
  bool is_shareable = false;
  /// Counts the bytes of the upload, and must outlive it; null: the upload uses its internal one. Stopping
  /// this work does not cancel the upload: call cancel().
  Work* work = nullptr;
  /// For tests: opens the backends, and sets the size of the ring.
  std::function<Result<std::shared_ptr<device::Backend>>(const device::Device&)> open_backend =
      device::Backend::open;
  std::uint64_t slot_bytes = 2U << 20U;  // a multiple of kTensorAlignment
  unsigned slots = 0;                    // 0: 16 slots, or 32 if the data must come from the disk
};

struct UploadReport {
  std::chrono::nanoseconds duration{};  // of moving the bytes alone; ends when all devices have finished
  std::uint64_t read_bytes = 0;
  std::uint64_t cached_bytes = 0;  // the part of read_bytes that was in the page cache at the start
  std::uint64_t overflows = 0;     // elements that the new dtype could not hold
  std::uint64_t verified_bytes = 0;
};

/// A model in the memory of its devices. Tensors are views: the owner of a tensor also owns its arena (a
/// shared_ptr).
struct Resident {
  std::vector<std::shared_ptr<device::Arena>> arenas;  // one for each of plan.devices
  Plan plan;                                           // where each tensor is
  UploadReport report;
};

/// A running upload with its threads. Any thread may call.
class Upload {
 public:
  /// Fails with ENOMEM, the needed size and the free size if the plan does not fit; otherwise starts to move
  /// bytes.
  static Result<std::unique_ptr<Upload>> start(Plan plan, const UploadOptions& options);
  /// Cancels and waits for the threads.
  virtual ~Upload() = default;

  /// The source bytes of the upload, and the number of bytes that have arrived.
  [[nodiscard]] virtual const Work& progress() const = 0;
  [[nodiscard]] virtual bool is_done() const = 0;
  /// Stops reading. wait() then fails with ECANCELED.
  virtual void cancel() = 0;
  /// Waits for the end; may be called once. On failure nothing stays on the devices. Errors: ESTALE if an
  /// archive has changed, EIO, ECANCELED, EBADMSG if verification found a different byte, the device's
  /// errors.
  virtual Result<Resident> wait() = 0;
};

}  // namespace stfs::upload
