// The devices compute digests in their queues; threads of this process compute those of the archives.
#include "tools/upload/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "tools/device/conversion.h"
#include "tools/device/digest.h"
#include "tools/text/printable.h"
#include "tools/upload/piece_reader.h"

namespace stfs::upload {
namespace {

/// The size of one read. It is a whole number of digest blocks, even after a conversion to an eighth of the
/// size.
constexpr std::uint64_t kChunkBytes = 1 << 20;
static_assert(kChunkBytes / 8 % kDigestBlockBytes == 0);

class Verification {
 public:
  Verification(const Plan& plan, const TransferList& list, const std::atomic<bool>& is_stopped)
      : plan_(plan),
        list_(list),
        is_stopped_(is_stopped),
        sums_(list.reads.size()),
        found_(plan.tensors.size()) {
    for (std::uint32_t read = 0; read < list.reads.size(); ++read) {
      for (std::uint64_t at = 0; at < list.reads[read].size_bytes; at += kChunkBytes)
        chunks_.push_back({read, at});
    }
  }

  /// Distributes the tensors of each device over the device's queues.
  Result<void> start(std::vector<std::vector<std::unique_ptr<Queue>>>& queues,
                     const std::vector<std::shared_ptr<Arena>>& arenas) {
    for (std::size_t at = 0; at < plan_.tensors.size(); ++at) {
      const PlannedTensor& tensor = plan_.tensors[at];
      auto& own = queues[tensor.device];
      auto started = own[at % own.size()]->digest(*arenas[tensor.device], tensor.place, &found_[at]);
      if (!started) return started;
    }
    return {};
  }

  /// Does one thread's share of the reading.
  void read_chunks() {
    auto done = guard_memory([&] { return try_read_chunks(); });
    if (done) return;
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::move(done).error();
  }

  Result<std::uint64_t> compare() const {
    if (failure_) return tl::unexpected(*failure_);
    if (is_stopped_) return fail(ErrorCode::System, ECANCELED, "cancelled");
    std::uint64_t size_bytes = 0;
    for (std::size_t read = 0; read < list_.reads.size(); ++read) {
      const Read& from = list_.reads[read];
      for (std::uint32_t at = from.first_target; at < from.first_target + from.targets; ++at) {
        const PlannedTensor& tensor = plan_.tensors[at];
        if (found_[at] != digest_end(sums_[read], tensor.place.size_bytes)) {
          return fail(
              ErrorCode::System, EBADMSG,
              fmt::format("{}: {}: the bytes on {} differ from the archive", from.archive->path().string(),
                          tools::printable_name(tensor.name), plan_.devices[tensor.device].device.name()));
        }
        size_bytes += tensor.place.size_bytes;
      }
    }
    return size_bytes;
  }

 private:
  struct Chunk {
    std::uint32_t read = 0;
    std::uint64_t offset = 0;
  };

  Result<void> try_read_chunks() {
    PieceReader reader(list_);
    std::vector<std::byte> bytes(kChunkBytes);
    std::vector<std::byte> converted;
    for (std::size_t at = next_++; at < chunks_.size() && !is_stopped_; at = next_++) {
      const Chunk chunk = chunks_[at];
      const Read& read = list_.reads[chunk.read];
      const std::uint64_t size_bytes = std::min(kChunkBytes, read.size_bytes - chunk.offset);
      auto piece = std::span(bytes).first(static_cast<std::size_t>(size_bytes));
      if (auto done = reader.read_part({chunk.read, {chunk.offset, size_bytes}, 0}, piece); !done)
        return done;
      const PlannedTensor& tensor = plan_.tensors[read.first_target];
      std::uint64_t offset = chunk.offset;
      if (tensor.dtype != tensor.source_dtype) {
        const std::uint64_t to_bytes = bits_of(tensor.dtype) / 8;
        const std::uint64_t from_bytes = bits_of(tensor.source_dtype) / 8;
        converted.resize(static_cast<std::size_t>(size_bytes / from_bytes * to_bytes));
        convert_elements(tensor.source_dtype, piece, tensor.dtype, converted);
        piece = converted;
        offset = offset / from_bytes * to_bytes;
      }
      sums_[chunk.read] += digest_sum(piece, offset / kDigestBlockBytes);
    }
    return {};
  }

  const Plan& plan_;
  const TransferList& list_;
  const std::atomic<bool>& is_stopped_;
  std::vector<Chunk> chunks_;
  std::vector<std::atomic<std::uint64_t>> sums_;  // for each read: the sum over the archive's bytes
  std::vector<std::uint64_t> found_;              // for each planned tensor: the digest from its device
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;  // guards failure_
  std::optional<Error> failure_;
};

}  // namespace

Result<std::uint64_t> verify_arenas(const Plan& plan, const TransferList& list,
                                    const std::vector<std::shared_ptr<Backend>>& backends,
                                    const std::vector<std::shared_ptr<Arena>>& arenas, unsigned readers,
                                    const std::atomic<bool>& is_stopped) {
  Verification verification(plan, list, is_stopped);
  // Declared last: the destructors of the queues wait for work that still writes to the variables above.
  std::vector<std::vector<std::unique_ptr<Queue>>> queues(backends.size());
  for (std::size_t device = 0; device < backends.size(); ++device) {
    // A queue of the CPU does the work of one thread.
    const unsigned wanted = backends[device]->is_host() ? readers : 1;
    while (queues[device].size() < wanted) {
      auto queue = backends[device]->open_queue();
      if (!queue) return pass_on(std::move(queue));
      queues[device].push_back(std::move(*queue));
    }
  }
  if (auto started = verification.start(queues, arenas); !started) return pass_on(std::move(started));
  std::vector<std::thread> threads;
  try {
    while (threads.size() + 1 < readers) threads.emplace_back([&] { verification.read_chunks(); });
  } catch (const std::system_error&) {
    // The system gives no more threads; continue with those that run.
  }
  verification.read_chunks();
  for (std::thread& thread : threads) thread.join();
  for (auto& own : queues) {
    for (const auto& queue : own) {
      const auto mark = queue->mark();
      if (!mark) return tl::unexpected(mark.error());
      if (auto passed = queue->wait_for(*mark); !passed) return pass_on(std::move(passed));
    }
  }
  return verification.compare();
}

}  // namespace stfs::upload
