// A queue of tensors, threads that empty it, and one thread that watches.
#include "tools/cli/tensor_scan.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>

#include "core/base/checksum.h"
#include "tools/cli/interrupt.h"

namespace stfs::tools {
namespace {

/// Bytes that are read, hashed and searched at a time. Few enough that each step finds them in the cache, and
/// enough to make the cost of the system calls negligible. A multiple of every element's size.
constexpr std::uint64_t kScanPieceBytes = 256U << 10U;
constexpr std::chrono::milliseconds kScanLookEvery{50};

class Scanner {
 public:
  Scanner(const Model& model, std::span<const std::uint32_t> tensors)
      : model_(model), scans_(tensors.size()), order_(tensors.size()) {
    for (std::size_t at = 0; at < tensors.size(); ++at) scans_[at].tensor = tensors[at];
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::ranges::stable_sort(order_, std::greater<>(), [&](std::size_t at) {
      return model_.tensors()[scans_[at].tensor].data.size_bytes;
    });
  }

  /// Scans tensors until the queue is empty or stop() was called.
  void work() {
    for (std::size_t next = next_++; next < order_.size() && !is_stopped_; next = next_++) {
      TensorScan& scan = scans_[order_[next]];
      auto done = guard_memory([&] { return read(scan); });
      if (!done) scan.failure = std::move(done).error();
    }
    const std::scoped_lock lock(mutex_);
    ended_ += 1;
    end_.notify_one();
  }

  /// Waits a moment. Returns whether that many calls of work() have ended.
  bool wait_a_moment(std::size_t threads) {
    std::unique_lock lock(mutex_);
    return end_.wait_for(lock, kScanLookEvery, [&] { return ended_ == threads; });
  }
  void stop() { is_stopped_ = true; }
  [[nodiscard]] std::uint64_t done_bytes() const { return done_bytes_; }
  std::vector<TensorScan> take_scans() { return std::move(scans_); }

 private:
  Result<void> read(TensorScan& scan) {
    const ArchiveReader& archive = model_.archive_of(scan.tensor);
    const ByteRange range = model_.file_range(scan.tensor);
    const Dtype dtype = model_.tensors()[scan.tensor].dtype;
    Checksum checksum;
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kScanPieceBytes, range.size_bytes)));
    for (std::uint64_t offset = range.offset; offset < range.end() && !is_stopped_;
         offset += kScanPieceBytes) {
      const auto piece =
          std::span(buffer).first(static_cast<std::size_t>(std::min(kScanPieceBytes, range.end() - offset)));
      if (auto read = archive.read_through(piece, offset); !read) return read;
      checksum.update(piece);
      scan.non_finite += count_non_finite(dtype, piece);
      done_bytes_ += piece.size();
    }
    scan.checksum = "xxh128:" + checksum.hex();
    return {};
  }

  const Model& model_;
  std::vector<TensorScan> scans_;   // each is written only by the thread that took the tensor
  std::vector<std::size_t> order_;  // positions in scans_, the largest tensor first
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> done_bytes_ = 0;
  std::atomic<bool> is_stopped_ = false;
  std::mutex mutex_;  // guards ended_
  std::size_t ended_ = 0;
  std::condition_variable end_;
};

}  // namespace

Result<std::vector<TensorScan>> scan_tensors(const Model& model, std::span<const std::uint32_t> tensors,
                                             std::uint64_t threads, Progress& progress) {
  Scanner scanner(model, tensors);
  std::vector<std::thread> workers;
  const std::size_t wanted = std::clamp<std::size_t>(tensors.size(), 1, std::max<std::uint64_t>(threads, 1));
  workers.reserve(wanted);
  try {
    while (workers.size() < wanted) workers.emplace_back([&scanner] { scanner.work(); });
  } catch (const std::system_error&) {
    if (workers.empty()) scanner.work();
  }
  for (bool is_done = workers.empty(); !is_done;) {
    is_done = scanner.wait_a_moment(workers.size());
    if (interrupted()) scanner.stop();
    progress.show(scanner.done_bytes());
  }
  for (std::thread& worker : workers) worker.join();
  if (interrupted()) return fail(ErrorCode::System, EINTR, model.path().string() + ": interrupted");
  return scanner.take_scans();
}

}  // namespace stfs::tools
