// The directory of a version that is being published: it looks finished only when the index has its name.
//
// Every file is written as NAME.tmp, synced and renamed. Shards get their names when all of them are whole;
// then the directory is synced; then the index gets its name. A publisher that dies earlier leaves a
// directory without an index, which receivers take for an unfinished one, and the next publisher of the same
// version cleans up.
//
// A user who may write a directory above may give the path to another directory meanwhile: so the directory
// is opened once, and all its files are reached through it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/storage/file.h"
#include "core/storage/open_directory.h"
#include "tools/sync/version_shard.h"

namespace stfs::sync {

/// Used by one thread. One that is destroyed before finish() removes what it has made. The index goes first,
/// and for good: if that fails, the shards stay.
class VersionDirectory {
 public:
  /// Makes the directory of a version, and the published directory if that is missing. Removes the files of
  /// an interrupted publisher of the same version.
  /// @return EEXIST: the version has an index. Busy (EBUSY): another publisher writes this version. EPERM:
  /// the directory belongs to another user than this one, root or the owner of the published directory.
  /// @param storage  must outlive it.
  static Result<VersionDirectory> create(const std::filesystem::path& published, std::uint64_t version,
                                         Storage& storage);

  VersionDirectory(VersionDirectory&& other) noexcept;
  VersionDirectory& operator=(VersionDirectory&&) = delete;
  ~VersionDirectory();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] Storage& storage() const { return *storage_; }
  /// The mode of a version's files, before the umask: whoever may read or write the published directory may
  /// do so with them. The modes of the models do not matter: many writers of checkpoints give them 0600, and
  /// receivers may be other users.
  [[nodiscard]] mode_t file_mode() const { return mode_; }
  /// The path of a shard, through the open directory. Numbers begin with 1.
  [[nodiscard]] std::filesystem::path shard_path(std::size_t number, std::size_t count) const;
  /// Names the settled shards in this order, then writes the index. Everything is on stable storage when it
  /// returns.
  Result<void> finish(std::span<VersionShard> shards, std::string_view index, mode_t mode);
  /// The same result. A message that has a path of shard_path() gets the path for people.
  [[nodiscard]] Result<void> told(Result<void> done) const;

 private:
  VersionDirectory(Storage& storage, std::filesystem::path path, OpenDirectory published, OpenDirectory own)
      : storage_(&storage), path_(std::move(path)), published_(std::move(published)), own_(std::move(own)) {}
  /// Finds out whether this publisher may go on, and removes what another has left.
  Result<void> begin();
  Result<void> finish_unguarded(std::span<VersionShard> shards, std::string_view index, mode_t mode);

  Storage* storage_;
  std::filesystem::path path_;  // for messages; empty: moved from
  OpenDirectory published_;
  OpenDirectory own_;
  mode_t mode_ = 0;       // of files
  bool is_made_ = false;  // by us
  bool is_finished_ = false;
  UniqueFd lock_;  // of the directory: keeps other publishers out
  std::vector<std::filesystem::path> named_;
};

}  // namespace stfs::sync
