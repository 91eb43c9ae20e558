// The directory and the shards of a version that is being published. The version looks finished only when the
// index has its name.
//
// Every file is written as NAME.tmp, synced and renamed. Shards get their names when all of them are whole;
// then the directory is synced; then the index gets its name. A publisher that dies earlier leaves a
// directory without an index. Receivers take this version for an unfinished one, and the next publisher of
// the same version cleans up.
//
// A user who may write a directory above may give the path to another directory. The directory is therefore
// opened once, and all its files are reached through its descriptor.
//
// The header is the beginning of a shard's file, but the sizes of its entries are known last. The publisher
// first writes spaces for the largest possible header, and replaces them at the end.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/format/header.h"
#include "core/format/metadata.h"
#include "core/storage/file.h"
#include "core/storage/new_file.h"
#include "core/storage/open_directory.h"
#include "tools/target/source_readers.h"

namespace stfs::sync {

/// Returns the most bytes that an entry of this name takes in a header, with its checksum in the metadata.
std::uint64_t most_header_bytes(std::string_view name);

/// A shard that is being written. Used by one thread at a time. A shard that is destroyed before it has its
/// name leaves nothing.
class VersionShard {
 public:
  /// Appends bytes of the next entry.
  Result<void> append(std::span<const std::byte> bytes);
  /// Makes an entry of the bytes that were appended after the last entry.
  void end_entry(std::string_view name, std::string_view checksum);
  /// Takes back the bytes that were appended after the last entry.
  Result<void> drop_entry();

  /// The names of all entries.
  [[nodiscard]] const std::vector<TensorSpec>& entries() const { return entries_; }
  /// The bytes of all entries.
  [[nodiscard]] std::uint64_t data_bytes() const { return data_bytes_; }

  /// Writes the header and syncs the file: only its name is missing.
  Result<void> settle();

 private:
  friend class VersionDirectory;
  VersionShard(std::filesystem::path path, NewFile file, std::uint64_t room_bytes)
      : path_(std::move(path)), file_(std::move(file)), room_bytes_(room_bytes) {}

  std::filesystem::path path_;
  NewFile file_;
  std::uint64_t room_bytes_;  // of the header, with its length
  std::vector<TensorSpec> entries_;
  Metadata checksums_;
  std::uint64_t data_bytes_ = 0;
  std::uint64_t entry_bytes_ = 0;  // of the entry that is being appended
};

/// Used by one thread, except new_shard(), which any number of threads may call. If the object is destroyed
/// before finish(), it removes all files that it has made. It removes the index first and syncs its
/// directory: if that fails, the shards stay.
class VersionDirectory {
 public:
  /// Makes the directory of a version, and the published directory if that is missing. Removes the files of
  /// an interrupted publisher of the same version.
  /// @param storage  must outlive this object.
  /// @return EEXIST: the version has an index. Busy (EBUSY): another publisher writes this version. EPERM:
  ///   the owner of the directory is neither this user, nor root, nor the owner of the published directory;
  ///   or the directory has such files, and another user may have moved it there.
  static Result<std::unique_ptr<VersionDirectory>> create(const std::filesystem::path& published,
                                                          std::uint64_t version, Storage& storage);

  VersionDirectory(const VersionDirectory&) = delete;
  VersionDirectory& operator=(const VersionDirectory&) = delete;
  ~VersionDirectory();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// EPERM: the model is private, users of the published directory are not, and another user may have moved
  /// the model to its place (tools/target/source_readers.h).
  [[nodiscard]] Result<void> check_source(const Model& model) const {
    return published_.fd ? tools::check_source_readers(published_.fd.get(), published_.path, model)
                         : Result<void>();  // a storage of a test
  }
  /// "model-00001-of-00002.safetensors". Numbers begin with 1.
  static std::string shard_name(std::size_t number, std::size_t count);
  /// Makes the file of a shard, NAME.tmp. A file of that name is replaced.
  /// @param header_bytes  the sum of most_header_bytes() of all entries that may come.
  [[nodiscard]] Result<VersionShard> new_shard(std::size_t number, std::size_t count,
                                               std::uint64_t header_bytes) const;
  /// Names the settled shards in this order, then writes the index. When it returns, everything is on stable
  /// storage.
  Result<void> finish(std::span<VersionShard> shards, std::string_view index);
  /// Returns the same result. In a message, the path for people replaces a path through the open directory.
  [[nodiscard]] Result<void> told(Result<void> done) const;

 private:
  VersionDirectory(Storage& storage, std::filesystem::path path, OpenDirectory published, OpenDirectory own)
      : storage_(storage), path_(std::move(path)), published_(std::move(published)), own_(std::move(own)) {}
  /// Checks that this publisher may proceed, and removes the files that another publisher has left.
  Result<void> begin();
  /// A user who may write the published directory can give a version's name to any directory in it. EPERM if
  /// that may have happened: the directory lacks the mark of a publisher (core/storage/made_directory.h).
  [[nodiscard]] Result<void> check_made_by_publisher() const;

  Storage& storage_;
  const std::filesystem::path path_;  // for messages
  const OpenDirectory published_;
  const OpenDirectory own_;
  /// The mode of a version's files, before the umask: a user who may read or write the published directory
  /// has the same rights to the files. The modes of the models do not matter: many writers of checkpoints
  /// give them 0600, and receivers may be other users.
  mode_t mode_ = 0;
  bool is_made_ = false;  // by this publisher
  bool is_finished_ = false;
  UniqueFd lock_;  // on the directory: keeps other publishers out
  std::vector<std::filesystem::path> named_;
};

}  // namespace stfs::sync
