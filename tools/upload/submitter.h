// Starts the copies of one device: what readers have put into slots goes into its arena, conversions behind,
// and the slots go back when all that is done.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "core/base/error.h"
#include "tools/device/backend.h"
#include "tools/upload/ring.h"
#include "tools/upload/transfers.h"

namespace stfs::upload {

/// What a submitter works with. All of it must outlive it.
struct SubmitterParts {
  const Plan& plan;
  const TransferList& list;
  Ring& ring;
  Backend& backend;
  Arena& arena;
  Arena* scratch = nullptr;  // a slot's room for each slot; only of a device that converts
  std::uint64_t slot_bytes = 0;
  std::uint32_t device = 0;  // in the plan
};

/// Used by one thread.
class Submitter {
 public:
  explicit Submitter(const SubmitterParts& parts) : parts_(parts) {}

  /// Works until the ring ends or is stopped.
  /// @param done_bytes  grows by the source bytes of what no device waits for any more.
  /// @return elements that their new dtype could not hold.
  Result<std::uint64_t> run(const std::atomic<bool>& is_stopped, std::atomic<std::uint64_t>& done_bytes);

 private:
  /// Two streams, so that one's copies run while the other's conversions do.
  static constexpr std::size_t kQueues = 2;
  struct UnderWay {
    Ring::Filled filled;
    std::size_t queue = 0;
    Queue::Mark mark = 0;
  };

  Result<void> start_copies(Queue& queue, Ring::Filled filled);
  Result<void> give_back(std::atomic<std::uint64_t>& done_bytes);
  [[nodiscard]] const PlannedTensor& target_of(const Part& part) const;

  const SubmitterParts parts_;
  std::array<std::unique_ptr<Queue>, kQueues> queues_;
  std::deque<UnderWay> under_way_;
};

}  // namespace stfs::upload
