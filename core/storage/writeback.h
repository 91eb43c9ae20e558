// Asks the kernel for what will have to be done anyway, from a thread of its own: to begin writing what was
// written, which takes half as long as the writing, and to forget what is about to be replaced. Whoever
// commits later waits for less.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "core/base/byte_range.h"
#include "core/storage/file.h"

namespace stfs {

/// Promises nothing and reports nothing, as File::begin_writeback() and evict(). Begins without a thread.
class Writeback {
 public:
  /// Large enough for the disk's full speed, small enough to begin early.
  static constexpr std::uint64_t kWindowBytes = 8 << 20;

  Writeback() = default;
  /// Drops what is still due.
  ~Writeback();
  Writeback(const Writeback&) = delete;
  Writeback& operator=(const Writeback&) = delete;

  /// Files must live until finish(). Any thread may call.
  /// Bytes were written, more or less in order: begins with each window of the file that they have ended.
  void follow(File& file, ByteRange written);
  void evict(File& file, ByteRange range) { ask(&File::evict, file, range); }
  /// All of it was asked for, where there was a thread to do so. While nobody begins more.
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
  std::mutex mutex_;  // guards what follows
  std::condition_variable has_work_;
  std::deque<Due> due_;
  bool is_ending_ = false;
};

}  // namespace stfs
