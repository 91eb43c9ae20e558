// Makes nearly right archives: changes single tensors and writes them as the format demands, then damages the
// text, then mostly makes the sizes (the header's length, the data's size) fit again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/mutator.h"

namespace stfs::test {

/// A tensor as a header describes it, sensible or not.
struct TensorDraft {
  std::string name;
  std::string_view dtype;
  std::vector<std::uint64_t> shape;
  /// Bytes between this tensor and the tensor before it. A sum that wraps around makes the two overlap.
  std::uint64_t hole_bytes = 0;
};

/// The size of the tensor's data, from a number of bits modulo 2^64; 0 for an unknown dtype.
std::uint64_t size_of(const TensorDraft& draft);

/// Writes an archive of these tensors, with their data in this order, and of a `__metadata__` unless that is
/// empty. The seed decides which tensor is the first in the header. The bytes of the data depend on their
/// offset and on the seed.
Bytes write_archive(std::span<const TensorDraft> drafts, std::string_view metadata_json, std::uint64_t seed);

/// Makes an archive of some of the tensors, as they are or with changed names, dtypes, shapes and order. Half
/// of the archives are damaged also.
Bytes make_archive(std::span<const TensorDraft> like, Choices& choices);

/// Damages an archive's header text, and sometimes its length, the size of the data or the end of the file.
void mutate_archive(Bytes& archive, std::string_view other_json, Choices& choices);

/// Random characters of JSON, or random bytes.
Bytes make_noise(Choices& choices);

}  // namespace stfs::test
