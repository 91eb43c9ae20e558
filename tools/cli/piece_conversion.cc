// Scales, and elements that are smaller than a byte, are converted through float32, as in PyTorch.
#include "tools/cli/piece_conversion.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "core/base/parallel.h"
#include "core/tensor/float_conversion.h"
#include "tools/device/conversion.h"
#include "tools/device/tensor_scales.h"

namespace stfs::tools {
namespace {

constexpr std::uint64_t kWholeBytes = 8;  // this many elements fill whole bytes, for each dtype

}  // namespace

PieceConversion::PieceConversion(const Tensor& from, Dtype to, std::vector<std::uint64_t> blocks,
                                 std::vector<float> scales, std::uint64_t threads)
    : from_(from.dtype),
      to_(to),
      shape_(from.shape),
      blocks_(std::move(blocks)),
      scales_(std::move(scales)),
      threads_(threads) {}

std::span<const std::byte> PieceConversion::convert(std::uint64_t offset, std::span<const std::byte> piece) {
  const std::uint64_t from_bits = bits_of(from_);
  const std::uint64_t to_bytes = bits_of(to_) / 8;
  const std::uint64_t first = offset * 8 / from_bits;
  const std::uint64_t count = piece.size() * 8 / from_bits;
  converted_.resize(static_cast<std::size_t>(count * to_bytes));
  std::uint64_t part = std::max(count / threads_ + 1, kPartBytes * 8 / from_bits);
  part += kWholeBytes - part % kWholeBytes;
  std::atomic<std::uint64_t> overflows = 0;
  const auto convert_one = [&](std::size_t at, unsigned) -> Result<void> {
    const std::uint64_t begin = at * part;
    const std::uint64_t size = std::min(part, count - begin);
    overflows += convert_part({first + begin, size, piece.subspan(begin * from_bits / 8),
                               std::span(converted_).subspan(begin * to_bytes, size * to_bytes)});
    return {};
  };
  // No conversion fails.
  static_cast<void>(run_parallel(static_cast<std::size_t>((count + part - 1) / part),
                                 static_cast<unsigned>(threads_), convert_one));
  overflows_ += overflows;
  return converted_;
}

std::uint64_t PieceConversion::convert_part(const Part& part) const {
  if (scales_.empty() && device::float_format_of(from_)) {
    return device::convert_elements(from_, part.from.first(part.count * bits_of(from_) / 8), to_, part.to);
  }
  std::array<float, 2048> block;
  const std::size_t to_bytes = bits_of(to_) / 8;
  std::uint64_t overflows = 0;
  for (std::uint64_t done = 0; done < part.count;) {
    const std::size_t count = std::min<std::uint64_t>(block.size(), part.count - done);
    const std::span<float> values = std::span(block).first(count);
    static_cast<void>(convert_to_float32(from_, part.from, values, done));
    if (!scales_.empty()) device::apply_scales(shape_, blocks_, scales_, part.first + done, values);
    overflows += device::convert_elements(Dtype::F32, std::as_bytes(values), to_,
                                          part.to.subspan(done * to_bytes, count * to_bytes));
    done += count;
  }
  return overflows;
}

}  // namespace stfs::tools
