// A delta: the changes that turn one model, the base, into another, the variant. A delta is an archive
// itself, which any reader opens.
//
//   tensors        the variant's tensors that the base lacks, or has with another dtype, shape or other bytes
//   __metadata__   the variant's metadata, and these keys:
//     safetensorsfs.delta                "2" or "3": the version of this format
//     safetensorsfs.delta.base           the base's file name, for people
//     safetensorsfs.delta.base_tensors   XXH128 of the names, dtypes and shapes of all tensors of the base
//     safetensorsfs.delta.base_bytes     XXH128 of the bytes of the base's tensors that the variant keeps
//     safetensorsfs.delta.base_files     JSON array of [name, size, mtime in ns], for each file of the base;
//                                        [name, size, version] for a file of a server
//     safetensorsfs.delta.removed        JSON array: names of tensors of the base that the variant lacks
//
// Version 1 is the same without base_files. Edits of a delta write version 3 (model_edit.h). Version 3 has no
// base_bytes, because each edit would have to read the base to compute it. These keys replace it:
//
//     safetensorsfs.delta.all_base_bytes XXH128 of the bytes of all tensors of the base. Left out if the
//                                        sizes and times of its files suffice
//     safetensorsfs.delta.renamed        JSON array of [name, name in the base, dtype, shape]: tensors with
//                                        the bytes of a tensor of the base that has another name or form
//
// No digest depends on how files divide the tensors: a delta that was made for shards fits an archive that
// joins the shards, with the data in any order. Opening a delta checks base_tensors. Only a reader of all the
// bytes can check base_bytes. delta_base.h describes when the sizes and times of the files make that
// unnecessary.
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
  std::string version{};      // File::version(); not empty: the file has no time

  friend bool operator==(const BaseFile&, const BaseFile&) = default;
};

struct Delta {
  std::string base;
  std::string base_tensors;  // 32 hexadecimal digits, like the other digests
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

/// Returns true if the metadata have a key of a delta.
bool is_delta(const Metadata& metadata);
/// Splits the metadata of a delta into its parts. InvalidArgument: a key is missing, damaged, or of another
/// version.
Result<Delta> parse_delta(const Metadata& metadata);
/// Joins the parts again: as version 2 if the delta has base_bytes, else as version 3.
Metadata metadata_of(const Delta& delta);

/// Splits a list of deltas: in "A:B", B is on top of A. In a path, a backslash escapes a colon or a
/// backslash. Empty parts are returned, also.
std::vector<std::filesystem::path> split_deltas(std::string_view list);
/// Joins the paths to a list for split_deltas().
std::string join_deltas(const std::vector<std::filesystem::path>& deltas);

/// Returns the digest "base_tensors" of a model's tensors.
std::string digest_of_tensors(const TensorIndex& tensors);

/// Checks that a delta fits the tensors of its base: the digest is the same, and each removed or renamed
/// tensor is in the base and not in the delta. InvalidArgument names the part that does not fit.
Result<void> check_delta(const Delta& delta, const TensorIndex& changed, const TensorIndex& base);
/// Checks the same without the digest, which takes most of the time. For a base whose digest was checked
/// before.
Result<void> check_names(const Delta& delta, const TensorIndex& changed, const TensorIndex& base);

}  // namespace stfs
