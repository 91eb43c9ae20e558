// Publishes a version: the diffs that turn one model into another, for any receiver of the format
// (published_version.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/work.h"
#include "core/storage/file.h"
#include "tools/compare/tensor_comparison.h"
#include "tools/sync/version_format.h"

namespace stfs::sync {

struct PublishOptions {
  DiffEncoding encoding = DiffEncoding::Xor;
  ChecksumFormat checksum_format = ChecksumFormat::Xxh3_128;
  std::uint64_t version = 1;
  std::uint64_t base_version = 0;  // smaller than version
  std::uint64_t threads = 1;
  /// Set: `models.b` is the model of the mount with this root. Its tensors are read through the mount, and
  /// may change during the call: each tensor is read again until one reading is whole.
  std::optional<std::filesystem::path> mount{};
  /// With `mount`: tensors that have not changed after this generation of the mount are taken to be equal to
  /// the tensors of `models.a`.
  std::optional<std::uint64_t> since{};
  Storage* storage = &system_storage();  // of the version
  Work* work = nullptr;  // one pass, of the bytes of NEW's tensors that are read; null: no watch
};

struct WrittenVersion {
  std::filesystem::path path;
  std::uint64_t tensors = 0;          // of the models
  std::uint64_t read_tensors = 0;     // tensors that were compared
  std::uint64_t tensor_bytes = 0;     // of the models
  std::uint64_t changed_tensors = 0;  // in the version
  std::uint64_t diff_bytes = 0;       // in the version, compressed
  /// With PublishOptions::mount: all changes up to this generation of the mount are in the version, and
  /// perhaps some later changes. The next version uses it as PublishOptions::since.
  std::optional<std::uint64_t> generation{};
};

/// Writes PUBLISHED/weight_vN with the tensors that differ between `models.a` and `models.b`, the new model.
/// Several tensors are encoded at a time, the largest first; each thread needs at most 8 MiB, whatever the
/// tensors' sizes. When the call returns, the version has its index and is on stable storage. After a failure
/// no file of the version is left.
/// @param published  is made if it is missing.
/// @return EINVAL: the models differ in names, dtypes or shapes (the message names the tensors), or
///   base_version is not smaller than version; EFBIG: a tensor is too large for overwrite; EEXIST and EBUSY:
///   the errors of VersionDirectory::create(); ESTALE: a model changed during the call; EINTR: the work was
///   stopped; EBUSY: a tensor of the mount changes faster than it is read; EINVAL: `since` is a generation
///   that the mount has not had yet; errors of MountedModel, of reading and of writing.
Result<WrittenVersion> publish_version(const tools::ModelPair& models, const std::filesystem::path& published,
                                       const PublishOptions& options);

// Parts of publish_version():

struct PlannedShard {
  std::vector<tools::TensorPair> tensors;  // the largest first
  std::uint64_t size_bytes = 0;            // of the tensors
  std::uint64_t header_bytes = 0;          // for VersionDirectory::new_shard()
};

/// Pairs the tensors of two models by name. EINVAL: one model lacks a tensor, or has it with another dtype or
/// shape; the message names the first such tensors.
Result<std::vector<tools::TensorPair>> paired_tensors(const tools::ModelPair& models);

/// Divides the tensors among shards of about equal size, the largest shard first. There are a few shards for
/// each thread, but none is small.
std::vector<PlannedShard> plan_shards(const Model& model, std::vector<tools::TensorPair> pairs,
                                      std::uint64_t threads);

}  // namespace stfs::sync
