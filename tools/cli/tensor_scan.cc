// One job for each tensor.
#include "tools/cli/tensor_scan.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/base/checksum.h"
#include "tools/cli/interrupt.h"
#include "tools/compare/parallel_jobs.h"

namespace stfs::tools {
namespace {

/// Bytes that are read, hashed and searched at a time. Few enough that each step finds them in the cache, and
/// enough to make the cost of the system calls negligible. A multiple of every element's size.
constexpr std::uint64_t kScanPieceBytes = 256U << 10U;

Result<void> scan_one(const Model& model, TensorScan& scan, JobStatus& status) {
  const ArchiveReader& archive = model.archive_of(scan.tensor);
  const ByteRange range = model.file_range(scan.tensor);
  const Dtype dtype = model.tensors()[scan.tensor].dtype;
  Checksum checksum;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kScanPieceBytes, range.size_bytes)));
  for (std::uint64_t offset = range.offset; offset < range.end() && !status.is_stopped();
       offset += kScanPieceBytes) {
    const auto piece =
        std::span(buffer).first(static_cast<std::size_t>(std::min(kScanPieceBytes, range.end() - offset)));
    if (auto read = archive.read_through(piece, offset); !read) return read;
    checksum.update(piece);
    scan.non_finite += count_non_finite(dtype, piece);
    status.advance(piece.size());
  }
  scan.checksum = "xxh128:" + checksum.hex();
  return {};
}

}  // namespace

Result<std::vector<TensorScan>> scan_tensors(const Model& model, std::span<const std::uint32_t> tensors,
                                             std::uint64_t threads, Progress& progress) {
  std::vector<std::size_t> order(tensors.size());  // positions in `tensors`, the largest tensor first
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t at) { return model.tensors()[tensors[at]].data.size_bytes; });
  std::vector<TensorScan> scans(tensors.size());
  for (std::size_t at = 0; at < tensors.size(); ++at) scans[at].tensor = tensors[at];
  const Watch watch = [&progress](std::uint64_t done_bytes) {
    progress.show(done_bytes);
    return !interrupted();
  };
  const auto scan_next = [&](std::size_t job, JobStatus& status) -> Result<void> {
    TensorScan& scan = scans[order[job]];
    auto done = guard_memory([&] { return scan_one(model, scan, status); });
    if (!done) scan.failure = std::move(done).error();
    return {};
  };
  const auto is_done = run_jobs(order.size(), threads, watch, scan_next);
  if (!is_done) return tl::unexpected(is_done.error());
  if (!*is_done) return fail(ErrorCode::System, EINTR, model.path().string() + ": interrupted");
  return scans;
}

}  // namespace stfs::tools
