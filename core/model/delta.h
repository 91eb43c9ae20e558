// A delta: what leads from one model, the base, to another, the variant. A delta is an archive itself, which
// any reader opens.
//
//   tensors        those of the variant that the base lacks, or has with another dtype, shape or other bytes
//   __metadata__   the variant's metadata, and these keys:
//     safetensorsfs.delta                "1": the version of this format
//     safetensorsfs.delta.base           the base's file name, for people
//     safetensorsfs.delta.base_tensors   XXH128 of the names, dtypes and shapes of all tensors of the base
//     safetensorsfs.delta.base_bytes     XXH128 of the bytes of those tensors of the base that the variant
//     keeps safetensorsfs.delta.removed        JSON array: the names of the base's tensors that the variant
//     lacks
//
// Neither digest depends on files: a delta of shards fits the archive that joins them, in any order of the
// data. Opening a delta checks base_tensors. Only a reader of all that is kept can check base_bytes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/metadata.h"
#include "core/format/tensor_index.h"

namespace stfs {

inline constexpr std::string_view kDeltaKey = "safetensorsfs.delta";

struct Delta {
  std::string base;
  std::string base_tensors;  // 32 hexadecimal digits, as base_bytes
  std::string base_bytes;
  std::vector<std::string> removed;
  Metadata metadata;  // the variant's own
};

/// Whether metadata has a key of a delta.
bool is_delta(const Metadata& metadata);
/// Splits the metadata of a delta. InvalidArgument: a key is missing, of another version, or damaged.
Result<Delta> parse_delta(const Metadata& metadata);
/// Joins them again.
Metadata metadata_of(const Delta& delta);

/// The digest "base_tensors" of a model's tensors.
std::string digest_of_tensors(const TensorIndex& tensors);

/// Checks that a delta fits the tensors of its base: the digest, and that each removed tensor is in the base
/// and not in the delta. InvalidArgument tells what does not fit.
Result<void> check_delta(const Delta& delta, const TensorIndex& changed, const TensorIndex& base);

}  // namespace stfs
