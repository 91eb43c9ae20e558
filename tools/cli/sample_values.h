// Values for a sample model: reproducible, finite, and generated as fast as a disk writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/format/dtype.h"

namespace stfs::tools {

/// Random bits under a mask, over fixed bits. The bits are chosen for each dtype so that each pattern is a
/// finite number of moderate size. 64 bits hold a whole number of elements of every dtype except the 6-bit
/// dtypes, whose patterns are all finite.
struct BitPattern {
  std::uint64_t random = ~0ULL;
  std::uint64_t fixed = 0;
};

/// Returns weights: floats of either sign with magnitudes in [2^-7, 2^-3); integers of any value; bools 0
/// or 1.
BitPattern weights_of(Dtype dtype);
/// Returns the gains of a normalization, in F32: [1, 1.5).
BitPattern gains();

/// Generates the bytes of one tensor in order. The bytes depend only on seed, name and position, so a tensor
/// keeps its values when other tensors of the model change.
class SampleValues {
 public:
  SampleValues(std::uint64_t seed, std::string_view name, BitPattern pattern);

  /// Fills the buffer with the next bytes. Every buffer except the last must be a multiple of 8 bytes.
  void fill(std::span<std::byte> to);

 private:
  std::uint64_t state_;
  BitPattern pattern_;
};

}  // namespace stfs::tools
