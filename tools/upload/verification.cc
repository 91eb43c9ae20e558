// The devices compute digests in their queues; threads of this process compute the digests of the archives.
#include "tools/upload/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/base/parallel.h"
#include "tools/device/digest.h"
#include "tools/text/printable.h"
#include "tools/upload/piece_reader.h"

namespace stfs::upload {
namespace {

/// The size of one read: a whole number of digest blocks, even after a conversion to an eighth of the size.
constexpr std::uint64_t kChunkBytes = 1 << 20;
static_assert(kChunkBytes / 8 % device::kDigestBlockBytes == 0);

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
  Result<void> start(std::vector<std::vector<std::unique_ptr<device::Queue>>>& queues,
                     const std::vector<std::shared_ptr<device::Arena>>& arenas) {
    for (std::size_t at = 0; at < plan_.tensors.size(); ++at) {
      const PlannedTensor& tensor = plan_.tensors[at];
      auto& own = queues[tensor.device];
      RETURN_IF_ERROR(own[at % own.size()]->digest(*arenas[tensor.device], tensor.place, &found_[at]));
    }
    return {};
  }

  /// Reads the archives on this many threads.
  Result<void> read_chunks(unsigned readers) {
    std::vector<std::optional<TargetReader>> own(worker_count(chunks_.size(), readers));  // by worker
    return run_parallel(chunks_.size(), readers, [&](std::size_t at, unsigned worker) -> Result<void> {
      if (is_stopped_) return {};
      if (!own[worker]) own[worker].emplace(plan_, list_);
      const Chunk& chunk = chunks_[at];
      const std::uint64_t left_bytes = list_.reads[chunk.read].size_bytes - chunk.offset;
      const auto piece = own[worker]->read(chunk.read, {chunk.offset, std::min(kChunkBytes, left_bytes)});
      RETURN_IF_ERROR(piece);
      sums_[chunk.read] += device::digest_sum(piece->bytes, piece->offset / device::kDigestBlockBytes);
      return {};
    });
  }

  Result<std::uint64_t> compare() const {
    if (is_stopped_) return fail(ErrorCode::System, ECANCELED, "cancelled");
    std::uint64_t size_bytes = 0;
    for (std::size_t read = 0; read < list_.reads.size(); ++read) {
      const Read& from = list_.reads[read];
      for (std::uint32_t at = from.first_target; at < from.first_target + from.targets; ++at) {
        const PlannedTensor& tensor = plan_.tensors[at];
        if (found_[at] != device::digest_end(sums_[read], tensor.place.size_bytes)) {
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

  const Plan& plan_;
  const TransferList& list_;
  const std::atomic<bool>& is_stopped_;
  std::vector<Chunk> chunks_;
  std::vector<std::atomic<std::uint64_t>> sums_;  // for each read: the sum over the archive's bytes
  std::vector<std::uint64_t> found_;              // for each planned tensor: the digest from its device
};

}  // namespace

Result<std::uint64_t> verify_arenas(const Plan& plan, const TransferList& list,
                                    const std::vector<std::shared_ptr<device::Backend>>& backends,
                                    const std::vector<std::shared_ptr<device::Arena>>& arenas,
                                    unsigned readers, const std::atomic<bool>& is_stopped) {
  Verification verification(plan, list, is_stopped);
  // Declared last: the destructors of the queues wait for work that still writes to the variables above.
  std::vector<std::vector<std::unique_ptr<device::Queue>>> queues(backends.size());
  for (std::size_t device = 0; device < backends.size(); ++device) {
    // A queue of the CPU does the work of one thread.
    const unsigned wanted = backends[device]->is_host() ? worker_count(plan.tensors.size(), readers) : 1;
    while (queues[device].size() < wanted) {
      auto queue = backends[device]->open_queue();
      RETURN_IF_ERROR(queue);
      queues[device].push_back(std::move(*queue));
    }
  }
  RETURN_IF_ERROR(verification.start(queues, arenas));
  RETURN_IF_ERROR(verification.read_chunks(readers));
  for (auto& own : queues) {
    for (const auto& queue : own) {
      const auto mark = queue->mark();
      RETURN_IF_ERROR(mark);
      RETURN_IF_ERROR(queue->wait_for(*mark));
    }
  }
  return verification.compare();
}

}  // namespace stfs::upload
