// Cuts tensors into parts, and runs a job for each part.
#include "tools/compare/tensor_comparison.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "core/base/mutex.h"

namespace stfs::tools {
namespace {

/// Bytes of each tensor that are in memory at a time. The pieces of A and of B fit into the second-level
/// cache, and are large enough to make the cost of the system calls negligible. A multiple of every element's
/// size, and of the three bytes that four elements of 6 bits take.
constexpr std::uint64_t kComparedPieceBytes = 192U << 10U;
/// Bytes of one job. The number is small enough that the threads end at about the same time.
constexpr std::uint64_t kComparedPartBytes = 128 * kComparedPieceBytes;

/// Part of a pair of tensors: the bytes from `begin` to `end`, counted from each tensor's first byte.
struct ComparedPart {
  std::size_t pair = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class Comparer {
 public:
  Comparer(const ModelPair& models, std::span<const TensorPair> pairs, std::uint64_t threads, Work& work)
      : models_(models),
        pairs_(pairs),
        threads_(threads),
        work_(work),
        comparisons_(pairs.size()),
        failed_parts_(pairs.size(), kNoPart) {}

  /// Finds the pairs whose bytes differ. @return false if interrupted.
  [[nodiscard]] bool compare_bytes() {
    std::vector<std::size_t> unknown;
    for (std::size_t pair = 0; pair < pairs_.size(); ++pair) {
      if (!is_same_place(pairs_[pair])) unknown.push_back(pair);
    }
    const std::vector<ComparedPart> parts = parts_of(unknown);
    std::vector<std::atomic<bool>> is_different(pairs_.size());
    const bool is_done = run(parts, [&](std::size_t at) {
      std::atomic<bool>& found = is_different[parts[at].pair];
      if (found) {
        work_.advance(parts[at].end - parts[at].begin);
        return;
      }
      read(parts, at, [&](std::span<const std::byte> a, std::span<const std::byte> b) {
        if (!found && std::memcmp(a.data(), b.data(), a.size()) != 0) found = true;
        return !found;
      });
    });
    for (const std::size_t pair : unknown) comparisons_[pair].is_different = is_different[pair];
    return is_done;
  }

  /// Computes the statistics of the pairs that differ. @return false if interrupted.
  [[nodiscard]] bool compare_numbers() {
    std::vector<std::size_t> different;
    for (std::size_t pair = 0; pair < pairs_.size(); ++pair) {
      if (comparisons_[pair].is_different && !comparisons_[pair].failure) different.push_back(pair);
    }
    const std::vector<ComparedPart> parts = parts_of(different);
    std::vector<ElementStatistics> partial(parts.size());
    const bool is_done = run(parts, [&](std::size_t at) {
      const Dtype dtype = models_.a.tensors()[pairs_[parts[at].pair].a].dtype;
      read(parts, at, [&](std::span<const std::byte> a, std::span<const std::byte> b) {
        partial[at] += compare_elements(dtype, a, b);
        return true;
      });
    });
    // Add in the order of the data: the sums must not depend on which thread was faster.
    for (std::size_t at = 0; at < parts.size(); ++at) {
      TensorComparison& comparison = comparisons_[parts[at].pair];
      if (comparison.failure) continue;
      if (!comparison.statistics) comparison.statistics.emplace();
      *comparison.statistics += partial[at];
    }
    return is_done;
  }

  std::vector<TensorComparison> take_comparisons() { return std::move(comparisons_); }

 private:
  static constexpr std::size_t kNoPart = std::numeric_limits<std::size_t>::max();

  /// Returns true if both tensors are the same bytes of the same version of a file on a server.
  [[nodiscard]] bool is_same_place(const TensorPair& pair) const {
    const File* a = models_.a.archive_of(pair.a).local_file();
    const File* b = models_.b.archive_of(pair.b).local_file();
    if (a == nullptr || b == nullptr || models_.a.file_range(pair.a) != models_.b.file_range(pair.b))
      return false;
    const std::string version = a->version();
    return !version.empty() && version == b->version();
  }

  [[nodiscard]] std::vector<ComparedPart> parts_of(std::span<const std::size_t> pairs) const {
    std::vector<ComparedPart> parts;
    for (const std::size_t pair : pairs) {
      const std::uint64_t size_bytes = models_.a.tensors()[pairs_[pair].a].data.size_bytes;
      for (std::uint64_t begin = 0; begin < size_bytes; begin += kComparedPartBytes) {
        parts.push_back({pair, begin, std::min(begin + kComparedPartBytes, size_bytes)});
      }
    }
    return parts;
  }

  /// @param compare  never fails: read() keeps failures.
  bool run(std::span<const ComparedPart> parts, const std::function<void(std::size_t part)>& compare) {
    std::uint64_t size_bytes = 0;
    for (const ComparedPart& part : parts) size_bytes += part.end - part.begin;
    work_.begin(size_bytes);
    const auto done =
        run_watched(parts.size(), threads_, work_, [&](std::size_t part, unsigned) -> Result<void> {
          compare(part);
          return {};
        });
    return done && !work_.is_stopped();
  }

  /// Reads a part piece by piece. Keeps the failure if there is one.
  /// @param judge  receives the same bytes of A and of B; returns false to end the reading.
  template <class Judge>
  void read(std::span<const ComparedPart> parts, std::size_t at, const Judge& judge) {
    bool is_b = false;
    std::uint64_t begin = parts[at].begin;
    auto done = guard_memory([&] { return read_pieces(parts[at], begin, is_b, judge); });
    work_.advance(parts[at].end - begin);  // including bytes that were not needed
    if (!done) keep_failure(parts[at].pair, at, std::move(done).error(), is_b);
  }

  /// @param begin  moves behind each piece that was judged.
  /// @param is_b   after a failure: true if B's tensor failed.
  template <class Judge>
  Result<void> read_pieces(const ComparedPart& part, std::uint64_t& begin, bool& is_b,
                           const Judge& judge) const {
    const TensorPair pair = pairs_[part.pair];
    const std::uint64_t offset_a = models_.a.file_range(pair.a).offset;
    const std::uint64_t offset_b = models_.b.file_range(pair.b).offset;
    const auto buffer_bytes = static_cast<std::size_t>(std::min(kComparedPieceBytes, part.end - begin));
    std::vector<std::byte> a(buffer_bytes);
    std::vector<std::byte> b(buffer_bytes);
    while (begin < part.end && work_.goes_on()) {
      const auto size_bytes = static_cast<std::size_t>(std::min(kComparedPieceBytes, part.end - begin));
      const auto piece_a = std::span(a).first(size_bytes);
      const auto piece_b = std::span(b).first(size_bytes);
      auto read = models_.a.archive_of(pair.a).read_through(piece_a, offset_a + begin);
      is_b = read.has_value();
      if (is_b) read = models_.b.archive_of(pair.b).read_through(piece_b, offset_b + begin);
      RETURN_IF_ERROR(read);
      if (!judge(piece_a, piece_b)) return {};
      begin += size_bytes;
      work_.advance(size_bytes);
    }
    return {};
  }

  /// Keeps the failure of the first part of a pair that fails.
  void keep_failure(std::size_t pair, std::size_t part, Error failure, bool is_b) {
    const MutexLock lock(mutex_);
    if (part >= failed_parts_[pair]) return;
    failed_parts_[pair] = part;
    comparisons_[pair].failure = std::move(failure);
    comparisons_[pair].is_failure_of_b = is_b;
  }

  const ModelPair models_;
  const std::span<const TensorPair> pairs_;
  const std::uint64_t threads_;
  Work& work_;
  std::vector<TensorComparison> comparisons_;
  Mutex mutex_;  // also guards the failures in comparisons_ while threads run
  std::vector<std::size_t> failed_parts_ GUARDED_BY(mutex_);
};

}  // namespace

Result<std::vector<TensorComparison>> compare_tensors(const ModelPair& models,
                                                      std::span<const TensorPair> pairs,
                                                      const ComparisonOptions& options) {
  Work unwatched;
  Comparer comparer(models, pairs, options.threads, options.work != nullptr ? *options.work : unwatched);
  const bool is_done = comparer.compare_bytes() && (!options.has_statistics || comparer.compare_numbers());
  if (!is_done) return fail(ErrorCode::System, EINTR, models.a.path().string() + ": interrupted");
  return comparer.take_comparisons();
}

}  // namespace stfs::tools
