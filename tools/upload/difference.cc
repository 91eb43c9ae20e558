// Threads take one tensor after the other, and compare it piece by piece.
#include "tools/upload/difference.h"

#include <algorithm>
#include <cstring>

#include "core/base/parallel.h"
#include "tools/device/digest.h"
#include "tools/upload/piece_reader.h"
#include "tools/upload/transfers.h"
#include "tools/upload/upload.h"

namespace stfs::upload {
namespace {

using device::Arena;
using device::Backend;

constexpr std::uint64_t kPieceBytes = 1 << 20;

/// One thread's buffers, and its queues.
class Comparer {
 public:
  Comparer(const Plan& plan, const TransferList& list, const std::vector<std::shared_ptr<Arena>>& arenas,
           const std::vector<std::shared_ptr<Backend>>& backends)
      : plan_(plan), arenas_(arenas), backends_(backends), reader_(plan, list), queues_(backends.size()) {}

  /// Compares a tensor and its replicas.
  /// @param differs  of these tensors; set for tensors that differ.
  Result<void> compare(const Read& read, std::uint32_t number, std::span<char> differs, const Work& work) {
    for (std::uint64_t done = 0; done < read.size_bytes; done += kPieceBytes) {
      if (work.is_stopped()) return fail(ErrorCode::System, ECANCELED, "cancelled: nothing is kept");
      if (std::ranges::count(differs, char{0}) == 0) return {};
      const auto piece = reader_.read(number, {done, std::min(kPieceBytes, read.size_bytes - done)});
      RETURN_IF_ERROR(piece);
      for (std::uint32_t at = 0; at < read.targets; ++at) {
        if (differs[at] != 0) continue;
        const std::uint32_t target = read.first_target + at;
        const std::uint64_t offset = plan_.tensors[target].place.offset + piece->offset;
        auto same = is_same(target, {offset, piece->bytes.size()}, piece->bytes);
        RETURN_IF_ERROR(same);
        differs[at] = *same ? 0 : 1;
      }
    }
    return {};
  }

 private:
  Result<bool> is_same(std::uint32_t target, ByteRange place, std::span<const std::byte> bytes) {
    const std::uint32_t device = plan_.tensors[target].device;
    Arena& arena = *arenas_[target];
    if (backends_[device]->is_host()) {
      return std::memcmp(arena.host_bytes().data() + place.offset, bytes.data(), bytes.size()) == 0;
    }
    if (!queues_[device]) {
      auto queue = backends_[device]->open_queue();
      RETURN_IF_ERROR(queue);
      queues_[device] = std::move(*queue);
    }
    RETURN_IF_ERROR(queues_[device]->digest(arena, place, &found_));
    const std::uint64_t due = device::digest_of(bytes);
    const auto mark = queues_[device]->mark();
    RETURN_IF_ERROR(mark);
    RETURN_IF_ERROR(queues_[device]->wait_for(*mark));
    return found_ == due;
  }

  const Plan& plan_;
  const std::vector<std::shared_ptr<Arena>>& arenas_;
  const std::vector<std::shared_ptr<Backend>>& backends_;
  TargetReader reader_;
  std::uint64_t found_ = 0;
  // The last member: the destructors wait for work that writes to found_.
  std::vector<std::unique_ptr<device::Queue>> queues_;
};

}  // namespace

Result<std::vector<bool>> find_different(const Plan& plan, const std::vector<std::shared_ptr<Arena>>& arenas,
                                         const DifferenceOptions& options, Work& work) {
  return guard_memory([&]() -> Result<std::vector<bool>> {
    std::vector<std::shared_ptr<Backend>> backends;
    for (const PlannedDevice& device : plan.devices) {
      auto backend = options.open_backend(device.device);
      RETURN_IF_ERROR(backend);
      backends.push_back(std::move(*backend));
    }
    const TransferList list = cut_into_transfers(plan, kPieceBytes);
    const unsigned threads = options.readers > 0 ? options.readers : default_readers();
    std::vector<std::unique_ptr<Comparer>> comparers(worker_count(list.reads.size(), threads));
    std::uint64_t total_bytes = 0;
    for (const Read& read : list.reads) total_bytes += read.size_bytes;
    work.begin(total_bytes);
    std::vector<char> differs(plan.tensors.size(), 0);  // not bool: threads write to neighbours
    auto compared =
        run_parallel(list.reads.size(), threads, [&](std::size_t number, unsigned worker) -> Result<void> {
          if (!comparers[worker])
            comparers[worker] = std::make_unique<Comparer>(plan, list, arenas, backends);
          const Read& read = list.reads[number];
          auto done =
              comparers[worker]->compare(read, static_cast<std::uint32_t>(number),
                                         std::span(differs).subspan(read.first_target, read.targets), work);
          work.advance(read.size_bytes);
          return done;
        });
    RETURN_IF_ERROR(compared);
    return std::vector<bool>(differs.begin(), differs.end());
  });
}

}  // namespace stfs::upload
