// Values for a sample model: reproducible, finite, and as fast as a disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/format/dtype.h"

namespace stfs::tools {

/// Random bits under a mask, over fixed bits: chosen per dtype so that each pattern is a finite number
/// of moderate size. 64 bits hold a whole number of elements of every dtype but the 6-bit ones, whose
/// every pattern is finite.
struct BitPattern {
  std::uint64_t random = ~0ULL;
  std::uint64_t fixed = 0;
};

/// Weights: floats of either sign with magnitudes in [2^-7, 2^-3); integers of any value; bools 0 or 1.
BitPattern weights_of(Dtype dtype);
/// Gains of a normalization, in F32: [1, 1.5).
BitPattern gains();

/// The bytes of one tensor from a position on: a function of seed, name and position alone, so that a
/// tensor keeps its values when the model around it changes.
class SampleValues {
 public:
  SampleValues(std::uint64_t seed, std::string_view name, BitPattern pattern);

  /// Fills the buffer with what follows. All buffers but the last are a multiple of 8 bytes.
  void fill(std::span<std::byte> to);

 private:
  std::uint64_t state_;
  BitPattern pattern_;
};

}  // namespace stfs::tools
