// Counts the requests, bytes, commits and errors of a mount, for `.safetensors/stats.json`.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"

namespace stfs {

enum class Request : std::uint8_t {
  Lookup,
  Getattr,
  Setattr,
  Access,
  Readdir,
  Open,
  Read,
  Write,
  Flush,
  Fsync,
  Release,
  Xattr,
  Mkdir,
  Unlink,
  Rmdir,
  Rename,
  Statfs,
};
inline constexpr std::size_t kRequestKinds = static_cast<std::size_t>(Request::Statfs) + 1;

/// Any thread may call. Counting never blocks.
class Activity {
 public:
  struct Counts {
    std::array<std::uint64_t, kRequestKinds> requests{};
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
    std::uint64_t commits = 0;
    std::uint64_t refused_commits = 0;
    std::uint64_t errors = 0;
    std::uint64_t replacements = 0;
  };

  void note_request(Request kind) { add(requests_[static_cast<std::size_t>(kind)], 1); }
  void note_read(std::uint64_t size_bytes) { add(bytes_read_, size_bytes); }
  void note_written(std::uint64_t size_bytes) { add(bytes_written_, size_bytes); }
  void note_commit() { add(commits_, 1); }
  void note_refused_commit() { add(refused_commits_, 1); }
  /// Counts a request that failed because the store failed, not because the request was wrong.
  void note_error() { add(errors_, 1); }

  /// Counts a replacement: another model is at the path, and the mount shows it now.
  void note_replacement() { add(replacements_, 1); }
  /// Sets the reason why the model at the path cannot be shown. Empty: it can be shown.
  void set_problem(std::string why);

  [[nodiscard]] Counts counts() const;

  using Time = std::chrono::steady_clock::time_point;
  /// The state of a mounted model, beside the counts.
  struct State {
    std::uint64_t tensors = 0;
    std::uint64_t open_slices = 0;
    bool is_broken = false;
    struct HotTensor {
      std::string name;       // at most NAME_MAX bytes of it
      double share_of_bytes;  // of the bytes that were read lately
    };
    std::vector<HotTensor> hot_tensors{};  // the hottest first
  };
  /// The state at one moment. `text` is a JSON object with the counts, and with rates per second since the
  /// last report that was read. The first report's rates begin at the start of the mount.
  struct Report {
    std::string text;
    Counts counts;
    Time at;
  };
  [[nodiscard]] Report report(const State& state) const;
  /// Notes that a report was read, so the rates of later reports begin at it. A look-up makes a report to
  /// know its size. A report that is never read does not affect the rates.
  void note_report_read(const Report& report);

 private:
  using Counter = std::atomic<std::uint64_t>;
  static void add(Counter& counter, std::uint64_t more) {
    counter.fetch_add(more, std::memory_order_relaxed);
  }

  std::array<Counter, kRequestKinds> requests_{};
  Counter bytes_read_ = 0;
  Counter bytes_written_ = 0;
  Counter commits_ = 0;
  Counter refused_commits_ = 0;
  Counter errors_ = 0;
  Counter replacements_ = 0;
  const Time began_ = std::chrono::steady_clock::now();

  mutable Mutex mutex_;
  std::string problem_ GUARDED_BY(mutex_);
  Counts last_ GUARDED_BY(mutex_);
  Time last_at_ GUARDED_BY(mutex_) = began_;
};

}  // namespace stfs
