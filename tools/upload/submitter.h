// Starts the copies of one device. Copies the filled slots into the device's arena, starts the conversions
// after the copies, and returns the slots when all this is done.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "core/base/error.h"
#include "core/base/work.h"
#include "tools/device/backend.h"
#include "tools/upload/ring.h"
#include "tools/upload/transfers.h"

namespace stfs::upload {

/// The parts that a submitter works with. All of them must outlive the submitter.
struct SubmitterParts {
  const Plan& plan;
  const TransferList& list;
  Ring& ring;
  device::Backend& backend;
  device::Arena& arena;
  device::Arena* scratch = nullptr;  // room of one slot for each slot; null if the device converts nothing
  std::uint64_t slot_bytes = 0;
  std::uint32_t device = 0;  // index into the plan's devices
};

/// Used by one thread.
class Submitter {
 public:
  explicit Submitter(const SubmitterParts& parts) : parts_(parts) {}

  /// Works until the ring ends or is stopped.
  /// @param work  advances by a slot's source bytes when its last device has finished with the slot.
  /// @return the number of elements that their new dtype could not hold.
  Result<std::uint64_t> run(const std::atomic<bool>& is_stopped, Work& work);

 private:
  /// Two streams: the copies of one run at the same time as the conversions of the other.
  static constexpr std::size_t kQueues = 2;
  struct UnderWay {
    Ring::Filled filled;
    std::size_t queue = 0;
    device::Queue::Mark mark = 0;
  };

  Result<void> start_copies(device::Queue& queue, Ring::Filled filled);
  Result<void> give_back(Work& work);
  [[nodiscard]] const PlannedTensor& target_of(const Part& part) const;

  const SubmitterParts parts_;
  std::array<std::unique_ptr<device::Queue>, kQueues> queues_;
  std::deque<UnderWay> under_way_;
};

}  // namespace stfs::upload
