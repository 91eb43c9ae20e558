// A version that training has published: a directory weight_vN of shards with compressed diffs and an index.
//
//   model-00001-of-00002.safetensors   for each changed tensor a U8 entry of its name: its diff
//                                      (diff_encoding.h), one zstd frame. __metadata__ maps the name to the
//                                      checksum of the tensor's new bytes. Unchanged tensors are absent.
//   model.safetensors.index.json       weight_map, and in metadata: version, base_version, delta_encoding,
//                                      compression_format, checksum_format. It is written last.
//
// An index without delta_encoding, or archives without an index, are a full version: a checkpoint that
// replaces everything.
//
// The directory may be read while it is written, and on some stores names appear before their bytes.
// is_unfinished() tells errors of such a directory from damage.
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
#include "tools/sync/checksum_format.h"
#include "tools/sync/diff_encoding.h"
#include "tools/sync/version_name.h"

namespace stfs::sync {

/// Whether the version is not whole yet: the same call may succeed later. Such errors have EAGAIN and say
/// "unfinished". All other errors of open() stay, unless somebody publishes the version again.
bool is_unfinished(const Error& error);
/// Such an error. @param why  what shows it.
tl::unexpected<Error> unfinished(const std::filesystem::path& path, std::string_view why);

/// An entry of a version. A view, valid as long as its PublishedVersion.
struct PublishedTensor {
  std::string_view name;
  std::uint32_t shard = 0;    // position in PublishedVersion::shards()
  ByteRange file_range;       // of the entry's bytes in the shard's file: the compressed diff
  std::string_view checksum;  // of the new bytes, as is_checksum() accepts it; empty in a full version
};

/// Immutable, but for its move: any number of threads may read it. Owns its shards, which are open for
/// reading.
class PublishedVersion {
 public:
  /// Opens a version and checks that its index and its shards agree. Does not read the diffs.
  /// @param directory  weight_vN.
  /// @return EAGAIN (is_unfinished): the index, a shard or a part of one is not there yet. ENOENT: there is
  ///   no directory. EINVAL: index and files contradict each other, or are damaged; EOPNOTSUPP: a checksum
  ///   format that this build lacks. The message names the file, the place, what was found, and what was
  ///   expected. Errors of the store are passed on.
  /// @param enclosing  the directory that the caller has named: this version's, or the one of all versions.
  ///   Below it no link is followed: what a link leads to may be a private file of the caller. ELOOP: the
  ///   message names the link. Empty: `directory`.
  static Result<PublishedVersion> open(const std::filesystem::path& directory,
                                       Storage& storage = system_storage(),
                                       const std::filesystem::path& enclosing = {});

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  /// Opens and lists the version's files.
  [[nodiscard]] Storage& files() const { return *files_; }
  /// From the index; for a full version without one, from the directory's name.
  [[nodiscard]] const VersionNumber& version() const { return version_; }
  /// Smaller than version(). Nothing for a full version.
  [[nodiscard]] const std::optional<VersionNumber>& base_version() const { return base_version_; }
  [[nodiscard]] bool is_full() const { return !base_version_; }
  /// Whether the directory has an index. A version of diffs always has one.
  [[nodiscard]] bool has_index() const { return has_index_; }
  /// XXH3 of the index's text; 0 if there is none.
  [[nodiscard]] std::uint64_t index_hash() const { return index_hash_; }
  // Meaningless for a full version:
  [[nodiscard]] DiffEncoding encoding() const { return encoding_; }
  [[nodiscard]] ChecksumFormat checksum_format() const { return checksum_format_; }

  /// In order of the names, byte by byte. Of a full version: all tensors of the checkpoint.
  [[nodiscard]] std::span<const PublishedTensor> tensors() const { return tensors_; }
  /// The entry with exactly this name, or null.
  [[nodiscard]] const PublishedTensor* find(std::string_view name) const;
  /// The diff of one of tensors(). Refers to this version.
  [[nodiscard]] CompressedDiff diff(const PublishedTensor& tensor) const;
  /// The files that the index names, in order of their names. Each has an archive.
  [[nodiscard]] std::span<const Shard> shards() const { return shards_; }

 private:
  friend class VersionOpener;
  PublishedVersion() = default;

  std::shared_ptr<Storage> files_;
  std::filesystem::path directory_;
  VersionNumber version_;
  std::optional<VersionNumber> base_version_;
  bool has_index_ = false;
  std::uint64_t index_hash_ = 0;
  DiffEncoding encoding_ = DiffEncoding::Xor;
  ChecksumFormat checksum_format_ = ChecksumFormat::Xxh3_128;
  std::vector<Shard> shards_;
  std::vector<PublishedTensor> tensors_;
};

}  // namespace stfs::sync
