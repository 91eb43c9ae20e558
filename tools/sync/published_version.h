// A version that training has published: a directory weight_vN with shards of compressed diffs and an index.
//
//   model-00001-of-00002.safetensors   for each changed tensor a U8 entry of its name with its diff
//                                      (version_format.h), one zstd frame. __metadata__ maps the name to the
//                                      checksum of the tensor's new bytes. Unchanged tensors are absent.
//   model.safetensors.index.json       weight_map, and in metadata: version, base_version, delta_encoding,
//                                      compression_format, checksum_format. The index is written last.
//
// An index without delta_encoding, or archives without an index, are a full version: a checkpoint that
// replaces everything.
//
// The directory may be read while it is written, and on some stores names appear before their bytes.
// is_unfinished() separates errors of such a directory from damage.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/model/model_shards.h"
#include "core/storage/file.h"
#include "tools/sync/version_format.h"

namespace stfs::sync {

/// Returns true if the version is not whole yet: the same call may succeed later. Such errors have EAGAIN and
/// contain "unfinished". All other errors of open() are lasting, unless the version is published again.
bool is_unfinished(const Error& error);
/// Returns an error for which is_unfinished() is true. @param why  the evidence, for the message.
tl::unexpected<Error> unfinished(const std::filesystem::path& path, std::string_view why);

/// An entry of a version. A view, valid as long as its PublishedVersion.
struct PublishedTensor {
  std::string_view name;
  std::uint32_t shard = 0;    // position in PublishedVersion::shards()
  ByteRange file_range;       // of the entry's bytes in the shard's file: the compressed diff
  std::string_view checksum;  // of the new bytes; is_checksum() accepts it; empty in a full version
};

/// Immutable, except for moves: any number of threads may read it. Owns its shards, which are open for
/// reading.
class PublishedVersion {
 public:
  /// Opens a version and checks that its index and its shards agree. Does not read the diffs.
  /// @param directory  weight_vN.
  /// @return EAGAIN (is_unfinished): the index, a shard or a part of one is not there yet. ENOENT: there is
  ///   no directory. EINVAL: index and files contradict each other, or are damaged; EOPNOTSUPP: a checksum
  ///   format that this build lacks. The message names the file, the place, the value that was found, and the
  ///   expected value. Errors of the store are passed on.
  /// @param enclosing  the directory that the caller has named: this version's directory, or the published
  ///                   directory. Below it no link is followed, because a link may lead to a private file of
  ///                   the caller. ELOOP: the message names the link. Empty: `directory`.
  static Result<PublishedVersion> open(const std::filesystem::path& directory,
                                       Storage& storage = system_storage(),
                                       const std::filesystem::path& enclosing = {});

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  /// Opens and lists the version's files.
  [[nodiscard]] Storage& files() const { return *files_; }
  /// From the index; for a full version without an index, from the directory's name.
  [[nodiscard]] const VersionNumber& version() const { return *metadata_.version; }
  /// Smaller than version(). Nothing for a full version.
  [[nodiscard]] const std::optional<VersionNumber>& base_version() const { return metadata_.base_version; }
  [[nodiscard]] bool is_full() const { return !metadata_.encoding; }
  /// Returns true if the directory has an index. A version of diffs always has one.
  [[nodiscard]] bool has_index() const { return has_index_; }
  /// XXH3 of the index's text; 0 without an index.
  [[nodiscard]] std::uint64_t index_hash() const { return index_hash_; }
  // Only for a version of diffs:
  [[nodiscard]] DiffEncoding encoding() const { return *metadata_.encoding; }
  [[nodiscard]] ChecksumFormat checksum_format() const { return metadata_.checksum_format; }

  /// The entries in order of the names, byte by byte. A full version has entries for all tensors of the
  /// checkpoint.
  [[nodiscard]] std::span<const PublishedTensor> tensors() const { return tensors_; }
  /// Returns the entry with exactly this name, or null.
  [[nodiscard]] const PublishedTensor* find(std::string_view name) const;
  /// Returns the diff of one of tensors(). It refers to this version.
  [[nodiscard]] CompressedDiff diff(const PublishedTensor& tensor) const;
  /// The files that the index names, in order of their names. Each has an archive.
  [[nodiscard]] std::span<const Shard> shards() const { return shards_; }

 private:
  friend class VersionOpener;
  PublishedVersion() = default;

  std::shared_ptr<Storage> files_;
  std::filesystem::path directory_;
  VersionMetadata metadata_;  // its version is always there
  bool has_index_ = false;
  std::uint64_t index_hash_ = 0;
  std::vector<Shard> shards_;
  std::vector<PublishedTensor> tensors_;
};

}  // namespace stfs::sync
