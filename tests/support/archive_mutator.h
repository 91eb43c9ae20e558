// Archives that are nearly right: tensors changed one by one and written as the format wants it, then the
// text damaged, then what is measured (the header's length, the data's size) made to fit again or not.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/mutator.h"

namespace stfs::test {

/// A tensor as a header would describe it, whether that makes sense or not.
struct TensorDraft {
  std::string name;
  std::string_view dtype;
  std::vector<std::uint64_t> shape;
  /// Between it and the one before it; what has wrapped around is an overlap.
  std::uint64_t hole_bytes = 0;
};

/// What its bytes come to, in the arithmetic of 64 bits; 0 for a dtype that there is not.
std::uint64_t size_of(const TensorDraft& draft);

/// The archive of these tensors, whose data lie one behind the other, and of a `__metadata__`, where it is
/// not empty. The seed decides with which of them the text begins; the data are bytes that tell where they
/// are and the seed.
Bytes write_archive(std::span<const TensorDraft> drafts, std::string_view metadata_json, std::uint64_t seed);

/// An archive of some of the tensors: as they are, or with names, dtypes, shapes and order changed, and the
/// file damaged more or less.
Bytes make_archive(std::span<const TensorDraft> like, Choices& choices);

/// Damages an archive's text, and what is measured.
void mutate_archive(Bytes& archive, std::string_view other_json, Choices& choices);

/// Text without sense, made of what JSON is made of, or of anything.
Bytes make_noise(Choices& choices);

}  // namespace stfs::test
