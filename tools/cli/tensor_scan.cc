// One job for each tensor.
#include "tools/cli/tensor_scan.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "core/base/checksum.h"
#include "core/base/mutex.h"

namespace stfs::tools {
namespace {

/// Bytes that are read, hashed and searched at a time. They stay in the cache from step to step, and the
/// number makes the cost of the system calls negligible. A multiple of every element's size.
constexpr std::uint64_t kScanPieceBytes = 256U << 10U;

/// @param spectrum  null: not computed.
Result<void> scan_one(const Model& model, TensorScan& scan, Work& work, ValueSpectrum* spectrum) {
  const ArchiveReader& archive = model.archive_of(scan.tensor);
  const ByteRange range = model.file_range(scan.tensor);
  const Dtype dtype = model.tensors()[scan.tensor].dtype;
  Checksum checksum;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kScanPieceBytes, range.size_bytes)));
  for (std::uint64_t offset = range.offset; offset < range.end() && work.goes_on();
       offset += kScanPieceBytes) {
    const auto piece =
        std::span(buffer).first(static_cast<std::size_t>(std::min(kScanPieceBytes, range.end() - offset)));
    RETURN_IF_ERROR(archive.read_through(piece, offset));
    checksum.update(piece);
    scan.non_finite += count_non_finite(dtype, piece);
    if (spectrum != nullptr) RETURN_IF_ERROR(spectrum->add(dtype, piece));
    work.advance(piece.size());
  }
  scan.checksum = "xxh128:" + checksum.hex();
  return {};
}

}  // namespace

Result<std::vector<TensorScan>> scan_tensors(const Model& model, std::span<const std::uint32_t> tensors,
                                             std::uint64_t threads, Work& work, const TakeSpectrum& take) {
  std::vector<std::size_t> order(tensors.size());  // positions in `tensors`, the largest tensor first
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t at) { return model.tensors()[tensors[at]].data.size_bytes; });
  std::vector<TensorScan> scans(tensors.size());
  for (std::size_t at = 0; at < tensors.size(); ++at) scans[at].tensor = tensors[at];
  std::uint64_t total_bytes = 0;
  for (const std::uint32_t tensor : tensors) total_bytes += model.tensors()[tensor].data.size_bytes;
  work.begin(total_bytes);
  Mutex taking;  // one thread calls take at a time
  const auto scan_next = [&](std::size_t job, unsigned) -> Result<void> {
    TensorScan& scan = scans[order[job]];
    const bool has_values = take && has_spectrum(model.tensors()[scan.tensor].dtype);
    const auto spectrum = has_values ? std::make_unique<ValueSpectrum>() : nullptr;
    auto done = guard_memory([&] { return scan_one(model, scan, work, spectrum.get()); });
    if (done && spectrum) {
      spectrum->count_outliers();
      const MutexLock lock(taking);
      take(scan.tensor, *spectrum);
    }
    if (!done) scan.failure = std::move(done).error();
    return {};
  };
  RETURN_IF_ERROR(run_watched(order.size(), threads, work, scan_next));
  if (work.is_stopped()) return fail(ErrorCode::System, EINTR, model.path().string() + ": interrupted");
  return scans;
}

}  // namespace stfs::tools
