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

#include "core/byte_range.h"
#include "core/file.h"

namespace stfs {

/// Promises nothing and reports nothing, as File's calls of the same names. Begins without a thread.
class Writeback {
 public:
  Writeback() = default;
  /// Drops what is still due.
  ~Writeback();
  Writeback(const Writeback&) = delete;
  Writeback& operator=(const Writeback&) = delete;

  /// The file must live until finish(). Any thread may call.
  void begin(File& file, ByteRange range) { ask(&File::begin_writeback, file, range); }
  void evict(File& file, ByteRange range) { ask(&File::evict, file, range); }
  /// All of it was asked for. While nobody begins more.
  void finish();

 private:
  using Call = void (File::*)(ByteRange);
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
