// The slots that bytes travel through: readers fill them, a submitter for each device empties them.
//
//   free --acquire()--> a reader fills it --fill()--> queued for each of its devices --next()--> copies
//   under way --release() by each device--> free
//
// Whoever waits is woken by stop(); nobody is given anything any more then.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

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

  /// Waits for a free slot; nothing after stop().
  std::optional<std::uint32_t> acquire();
  /// Hands a filled slot to devices.
  void fill(Filled filled, std::span<const std::uint32_t> devices);
  /// The next one of a device. Waits where `can_wait`; nothing after stop(), and, once end() was called, when
  /// there is none any more.
  std::optional<Filled> next(std::uint32_t device, bool can_wait);
  /// A device is done with a slot. @return whether it was the last.
  bool release(std::uint32_t slot);

  /// No more slots will be filled.
  void end();
  void stop();

 private:
  std::span<std::byte> memory_;
  std::uint64_t slot_bytes_;
  std::mutex mutex_;  // guards all below
  std::condition_variable freed_;
  std::condition_variable filled_;
  std::vector<std::uint32_t> free_;
  std::vector<std::size_t> pending_;  // of each slot: devices that are not done with it
  std::vector<std::deque<Filled>> queues_;
  bool is_ended_ = false;
  bool is_stopped_ = false;
};

}  // namespace stfs::upload
