// Publishes a version: the diffs that lead from one model to another, for any receiver of the format
// (published_version.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "core/base/error.h"
#include "core/base/work.h"
#include "core/storage/file.h"
#include "tools/compare/tensor_comparison.h"
#include "tools/sync/checksum_format.h"
#include "tools/sync/diff_encoding.h"

namespace stfs::sync {

struct PublishOptions {
  DiffEncoding encoding = DiffEncoding::Xor;
  ChecksumFormat checksum_format = ChecksumFormat::Xxh3_128;
  std::uint64_t version = 1;
  std::uint64_t base_version = 0;  // smaller than version
  std::uint64_t threads = 1;
  /// Set: `models.b` is the model of the mount with this root. Its tensors are read through the mount, and
  /// may change meanwhile: each is read again until it was read whole.
  std::optional<std::filesystem::path> mount{};
  /// With `mount`: tensors that have not changed since this generation of the mount are taken as those of
  /// `models.a`.
  std::optional<std::uint64_t> since{};
  Storage* storage = &system_storage();  // of the version
  Work* work = nullptr;  // one pass, of the bytes of NEW's tensors that are read; null: nobody watches
};

struct WrittenVersion {
  std::filesystem::path path;
  std::uint64_t tensors = 0;          // of the models
  std::uint64_t read_tensors = 0;     // that were compared
  std::uint64_t tensor_bytes = 0;     // of the models
  std::uint64_t changed_tensors = 0;  // in the version
  std::uint64_t diff_bytes = 0;       // in the version, compressed
  /// With PublishOptions::mount: all changes up to this generation of the mount are in the version, and
  /// perhaps some that came later. PublishOptions::since of the next version.
  std::optional<std::uint64_t> generation{};
};

/// Writes PUBLISHED/weight_vN with the tensors that differ between `models.a` and `models.b`, the new one.
/// Several tensors are encoded at a time, the largest first; each thread takes at most 8 MiB, whatever the
/// tensors' sizes. The version has its index, and is on stable storage, when this returns; after a failure no
/// file of it is left.
/// @param published  is made if it is missing.
/// @return EINVAL: the models differ in names, dtypes or shapes (the message names the tensors), or
///   base_version is not smaller than version; EFBIG: a tensor is too large for overwrite; EEXIST and EBUSY
///   as VersionDirectory::create(); ESTALE: a model has changed meanwhile; EINTR: the work is stopped; EBUSY:
///   a tensor of the mount changes faster than it is read; EINVAL: `since` is a generation that the mount has
///   not had yet; errors of MountedModel, of reading and of writing.
Result<WrittenVersion> publish_version(const tools::ModelPair& models, const std::filesystem::path& published,
                                       const PublishOptions& options);

}  // namespace stfs::sync
