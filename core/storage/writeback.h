// Asks the kernel, from a separate thread, to do work early that a commit would otherwise wait for: to write
// dirty pages (the request takes half as long as writing the bytes), and to evict pages that are about to be
// replaced.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <thread>

#include "core/base/byte_range.h"
#include "core/base/mutex.h"
#include "core/storage/file.h"

namespace stfs {

/// Reports neither results nor failures, like File::begin_writeback() and evict(). Starts its thread on first
/// use.
class Writeback {
 public:
  /// Large enough for the disk's full speed, small enough to start early.
  static constexpr std::uint64_t kWindowBytes = 8 << 20;

  Writeback() = default;
  /// Drops requests that were not made yet.
  ~Writeback();
  Writeback(const Writeback&) = delete;
  Writeback& operator=(const Writeback&) = delete;

  /// Files must live until finish(). Any thread may call. Call follow() after bytes were written, more or
  /// less in order: it asks for writeback of each window of the file that these bytes have completed.
  void follow(File& file, ByteRange written);
  void evict(File& file, ByteRange range) { ask(&File::evict, file, range); }
  /// Returns when all requests have been made, if there was a thread for them. Do not call follow() or
  /// evict() during this call.
  void finish();

 private:
  using Call = void (File::*)(ByteRange) const;
  struct Due {
    Call call = nullptr;
    File* file = nullptr;
    ByteRange range;
  };
  void ask(Call call, File& file, ByteRange range);
  void work();

  std::optional<std::thread> thread_;
  Mutex mutex_;
  Condition has_work_;
  std::deque<Due> due_ GUARDED_BY(mutex_);
  bool is_ending_ GUARDED_BY(mutex_) = false;
};

}  // namespace stfs
