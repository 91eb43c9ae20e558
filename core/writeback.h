// Asks the disk to begin with what was written, from a thread of its own: the asking takes half as long as
// the writing, and whoever syncs later waits for less.
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

/// Promises nothing and reports nothing (File::begin_writeback()). Begins without a thread. Used by one
/// thread at a time.
class Writeback {
 public:
  Writeback() = default;
  /// Drops what is still due.
  ~Writeback();
  Writeback(const Writeback&) = delete;
  Writeback& operator=(const Writeback&) = delete;

  /// The file must live until finish().
  void begin(File& file, ByteRange range);
  /// All of it was asked for.
  void finish();

 private:
  struct Due {
    File* file = nullptr;
    ByteRange range;
  };
  void work();

  std::optional<std::thread> thread_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable has_work_;
  std::deque<Due> due_;
  bool is_ending_ = false;
};

}  // namespace stfs
