// Converts a tensor piece by piece to another dtype, and applies its scales, on several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/format/tensor_index.h"

namespace stfs::tools {

inline constexpr std::uint64_t kPartBytes = 1U << 20U;  // takes milliseconds, so it is worth a thread

/// Returns the largest size that is not greater and is a whole number of elements of each dtype (F6 has 4 in
/// 3 bytes).
constexpr std::uint64_t whole_pieces(std::uint64_t size_bytes) {
  return size_bytes - size_bytes % 24;
}

class PieceConversion {
 public:
  /// @param from    its model must outlive this object.
  /// @param to      a conversion target (tools/device/conversion.h).
  /// @param blocks  this many elements of each dimension share a scale (tools/device/tensor_scales.h).
  /// @param scales  empty: the tensor has none.
  PieceConversion(const Tensor& from, Dtype to, std::vector<std::uint64_t> blocks, std::vector<float> scales,
                  std::uint64_t threads);

  /// Converts the bytes of the tensor that begin at `offset`, whole elements. The result is valid until the
  /// next call.
  std::span<const std::byte> convert(std::uint64_t offset, std::span<const std::byte> piece);
  /// The number of elements so far that the dtype could not hold.
  [[nodiscard]] std::uint64_t overflows() const { return overflows_; }

 private:
  /// Some elements of the piece.
  struct Part {
    std::uint64_t first = 0;  // of the tensor
    std::uint64_t count = 0;
    std::span<const std::byte> from;
    std::span<std::byte> to;
  };
  [[nodiscard]] std::uint64_t convert_part(const Part& part) const;

  const Dtype from_;
  const Dtype to_;
  const std::span<const std::uint64_t> shape_;
  const std::vector<std::uint64_t> blocks_;
  const std::vector<float> scales_;
  const std::uint64_t threads_;
  std::uint64_t overflows_ = 0;
  std::vector<std::byte> converted_;
};

}  // namespace stfs::tools
