// A delta: what leads from one model, the base, to another, the variant. A delta is an archive itself, which
// any reader opens.
//
//   tensors        those of the variant that the base lacks, or has with another dtype, shape or other bytes
//   __metadata__   the variant's metadata, and these keys:
//     safetensorsfs.delta                "2" or "3": the version of this format
//     safetensorsfs.delta.base           the base's file name, for people
//     safetensorsfs.delta.base_tensors   XXH128 of the names, dtypes and shapes of all tensors of the base
//     safetensorsfs.delta.base_bytes     XXH128 of the bytes of those tensors that the variant keeps
//     safetensorsfs.delta.base_files     JSON array of [name, size, mtime in ns], for each file of the base
//     safetensorsfs.delta.removed        JSON array: names of tensors of the base that the variant lacks
//
// Version 1 is the same without base_files. Version 3 is what edits of a delta make (model_edit.h). It has no
// base_bytes: each edit would have to read the base for it. It has these keys instead:
//
//     safetensorsfs.delta.all_base_bytes XXH128 of the bytes of all tensors of the base. Left out if the
//                                        sizes and times of its files suffice
//     safetensorsfs.delta.renamed        JSON array of [name, name in the base, dtype, shape]: tensors with
//                                        the bytes of a tensor of the base that has another name or form
//
// No digest depends on files: a delta of shards fits the archive that joins them, in any order of the data.
// Opening a delta checks base_tensors. Only a reader of all those bytes can check base_bytes; delta_base.h
// tells when the sizes and times of the files make that unnecessary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/dtype.h"
#include "core/format/metadata.h"
#include "core/format/tensor_index.h"

namespace stfs {

inline constexpr std::string_view kDeltaKey = "safetensorsfs.delta";
/// The extended attribute of a mount's root, and of the views of the whole model, that names the mount's
/// deltas as join_deltas() does.
inline constexpr char kDeltaAttribute[] = "user.safetensors.delta";

/// A file of the base, as it was when the delta was written.
struct BaseFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;  // since the epoch; 0 if the time proves nothing

  friend bool operator==(const BaseFile&, const BaseFile&) = default;
};

struct Delta {
  std::string base;
  std::string base_tensors;  // 32 hexadecimal digits, as the other digests
  std::string base_bytes;    // empty for version 3
  std::vector<std::string> removed;
  Metadata metadata;  // the variant's own
  /// In the order of the model's shards. Empty for version 1.
  std::vector<BaseFile> base_files{};
  // Only for version 3:
  std::string all_base_bytes{};  // empty: unknown
  struct Renamed {
    std::string name;
    std::string from;  // its name in the base
    Dtype dtype = Dtype::U8;
    std::vector<std::uint64_t> shape;

    friend bool operator==(const Renamed&, const Renamed&) = default;
  };
  std::vector<Renamed> renamed{};
};

/// Whether metadata has a key of a delta.
bool is_delta(const Metadata& metadata);
/// Splits the metadata of a delta. InvalidArgument: a key is missing, of another version, or damaged.
Result<Delta> parse_delta(const Metadata& metadata);
/// Joins them again: as version 2 if the delta has base_bytes, else as version 3.
Metadata metadata_of(const Delta& delta);

/// Splits a list of deltas, "A:B": B lies on top of A. A backslash stands before a colon or a backslash that
/// belongs to a path. Empty parts are returned too.
std::vector<std::filesystem::path> split_deltas(std::string_view list);
/// Joins them again.
std::string join_deltas(const std::vector<std::filesystem::path>& deltas);

/// The digest "base_tensors" of a model's tensors.
std::string digest_of_tensors(const TensorIndex& tensors);

/// Checks that a delta fits the tensors of its base: the digest, and that each removed or renamed tensor is
/// in the base and not in the delta. InvalidArgument tells what does not fit.
Result<void> check_delta(const Delta& delta, const TensorIndex& changed, const TensorIndex& base);
/// The same without the digest, which takes the longest: for a base that had it before.
Result<void> check_names(const Delta& delta, const TensorIndex& changed, const TensorIndex& base);

}  // namespace stfs
