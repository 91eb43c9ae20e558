// Remembers of which tensors the last reads were, for `hot_tensors` of stats.json.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "core/format/tensor_id.h"

namespace stfs {

/// Any thread may call. A note costs one atomic addition. If two threads meet in one place of the ring, a
/// read can get the time of another read.
class RecentReads {
 public:
  /// The time since any fixed moment.
  using Time = std::chrono::seconds;
  static constexpr std::size_t kMostReads = 512;
  static constexpr Time kPeriod{10};

  RecentReads() = default;
  ~RecentReads() { delete ring_.load(); }
  RecentReads(const RecentReads&) = delete;
  RecentReads& operator=(const RecentReads&) = delete;

  /// @param size_bytes  a larger read than 4 GiB has the weight of 4 GiB.
  void note(TensorId tensor, std::uint64_t size_bytes, Time now = present()) const noexcept;

  struct Share {
    TensorId tensor;
    double of_bytes;  // of the bytes of all reads that are remembered; above 0, at most 1
  };
  /// Returns the tensors of the last kMostReads reads in the last kPeriod, the most bytes first.
  [[nodiscard]] std::vector<Share> hottest(std::size_t most, Time now = present()) const;

  /// The time of a clock that costs no system call and never goes back.
  static Time present() noexcept;

 private:
  struct Read {
    std::atomic<std::uint64_t> tensor_and_size = 0;  // the number of the tensor in the upper half
    std::atomic<std::int64_t> at = -1;               // in Time; negative: there was no read yet
  };
  struct Ring {
    std::array<Read, kMostReads> reads{};
    std::atomic<std::uint64_t> count = 0;
  };
  /// Null if there is no memory.
  [[nodiscard]] Ring* ring() const noexcept;

  mutable std::atomic<Ring*> ring_ = nullptr;  // made by the first read: most models of a directory have none
};

}  // namespace stfs
