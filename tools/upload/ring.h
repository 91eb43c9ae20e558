// The slots that pass bytes from readers to devices. Readers fill slots; one submitter for each device
// empties them.
//
//   free --acquire()--> a reader fills it --fill()--> queued for each of its devices --next()--> copies
//   under way --release() by each device--> free
//
// stop() wakes all waiting threads. After stop() no call returns a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "core/base/mutex.h"

namespace stfs::upload {

class Ring {
 public:
  struct Filled {
    std::uint32_t slot = 0;
    std::uint32_t transfer = 0;
  };

  /// @param memory  slots * slot_bytes; must outlive the ring.
  Ring(std::span<std::byte> memory, std::uint64_t slot_bytes, unsigned slots, std::size_t devices);

  [[nodiscard]] std::span<std::byte> bytes(std::uint32_t slot) const {
    return memory_.subspan(static_cast<std::size_t>(slot * slot_bytes_),
                           static_cast<std::size_t>(slot_bytes_));
  }

  /// Waits for a free slot. Returns nothing after stop().
  std::optional<std::uint32_t> acquire();
  /// Queues a filled slot for each of these devices.
  void fill(Filled filled, std::span<const std::uint32_t> devices);
  /// Returns the next filled slot of a device and waits for it if `can_wait`. Returns nothing after stop(),
  /// and nothing after end() once the device's queue is empty.
  std::optional<Filled> next(std::uint32_t device, bool can_wait);
  /// Reports that a device has finished with a slot. @return true if it was the last device; the slot is then
  /// free.
  bool release(std::uint32_t slot);

  /// Declares that the readers will fill no further slots.
  void end();
  void stop();

 private:
  std::span<std::byte> memory_;
  std::uint64_t slot_bytes_;
  Mutex mutex_;
  Condition freed_;
  Condition filled_;
  std::vector<std::uint32_t> free_ GUARDED_BY(mutex_);
  // For each slot: the number of devices that have not finished with it.
  std::vector<std::size_t> pending_ GUARDED_BY(mutex_);
  std::vector<std::deque<Filled>> queues_ GUARDED_BY(mutex_);
  bool is_ended_ GUARDED_BY(mutex_) = false;
  bool is_stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace stfs::upload
