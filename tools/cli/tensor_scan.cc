// One job for each tensor.
#include "tools/cli/tensor_scan.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/base/checksum.h"

namespace stfs::tools {
namespace {

/// Bytes that are read, hashed and searched at a time. Few enough that each step finds them in the cache, and
/// enough to make the cost of the system calls negligible. A multiple of every element's size.
constexpr std::uint64_t kScanPieceBytes = 256U << 10U;

Result<void> scan_one(const Model& model, TensorScan& scan, Work& work) {
  const ArchiveReader& archive = model.archive_of(scan.tensor);
  const ByteRange range = model.file_range(scan.tensor);
  const Dtype dtype = model.tensors()[scan.tensor].dtype;
  Checksum checksum;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kScanPieceBytes, range.size_bytes)));
  for (std::uint64_t offset = range.offset; offset < range.end() && work.goes_on();
       offset += kScanPieceBytes) {
    const auto piece =
        std::span(buffer).first(static_cast<std::size_t>(std::min(kScanPieceBytes, range.end() - offset)));
    if (auto read = archive.read_through(piece, offset); !read) return read;
    checksum.update(piece);
    scan.non_finite += count_non_finite(dtype, piece);
    work.advance(piece.size());
  }
  scan.checksum = "xxh128:" + checksum.hex();
  return {};
}

}  // namespace

Result<std::vector<TensorScan>> scan_tensors(const Model& model, std::span<const std::uint32_t> tensors,
                                             std::uint64_t threads, Work& work) {
  std::vector<std::size_t> order(tensors.size());  // positions in `tensors`, the largest tensor first
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t at) { return model.tensors()[tensors[at]].data.size_bytes; });
  std::vector<TensorScan> scans(tensors.size());
  for (std::size_t at = 0; at < tensors.size(); ++at) scans[at].tensor = tensors[at];
  std::uint64_t total_bytes = 0;
  for (const std::uint32_t tensor : tensors) total_bytes += model.tensors()[tensor].data.size_bytes;
  work.begin(total_bytes);
  const auto scan_next = [&](std::size_t job, unsigned) -> Result<void> {
    TensorScan& scan = scans[order[job]];
    auto done = guard_memory([&] { return scan_one(model, scan, work); });
    if (!done) scan.failure = std::move(done).error();
    return {};
  };
  const auto done = run_watched(order.size(), threads, work, scan_next);
  if (!done) return tl::unexpected(done.error());
  if (work.is_stopped()) return fail(ErrorCode::System, EINTR, model.path().string() + ": interrupted");
  return scans;
}

}  // namespace stfs::tools
