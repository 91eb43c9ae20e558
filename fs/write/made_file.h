// An archive that a program makes among the models of a mounted directory (fs/model/source_directory.h). It
// arrives in order (archive_stream.h), in a file without a name, and gets its name when a close finds it
// whole (close_decision.h).
//
//   arriving -> named    a close, all bytes have come
//            -> failed   a refused write, a close too early, a killed writer, a removal: the bytes are
//                        dropped, and every later call fails
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/storage/file.h"
#include "core/storage/writeback.h"
#include "fs/write/archive_stream.h"
#include "fs/write/close_decision.h"
#include "fs/write/open_file.h"

namespace stfs {

/// Any thread may call.
class MadeFile {
 public:
  /// @param file  of Storage::create_unnamed().
  /// @param path  the path that it gets.
  /// @param directory  leads to the open directory of that path, which others may exchange. Must stay open.
  MadeFile(std::unique_ptr<File> file, std::filesystem::path path, std::filesystem::path directory);

  [[nodiscard]] std::filesystem::path path() const;
  /// Call when an archive that has no name yet gets another path.
  /// @param replacer  it takes the name of a file that exists, for this user. Nothing: no file has the name.
  void move_to(std::filesystem::path path, std::optional<uid_t> replacer);
  [[nodiscard]] std::optional<uid_t> replacer() const;

  /// EINVAL for an archive that comes out of order or is none. ESTALE when it has its name. Else as the store
  /// fails.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset, Caller caller);
  Result<void> resize(std::uint64_t size_bytes, Caller caller);
  /// Returns fewer bytes than asked for only at the end of what has come.
  [[nodiscard]] Result<std::vector<std::byte>> read(std::uint64_t offset, std::size_t size_bytes) const;
  [[nodiscard]] Result<struct stat> status() const;
  Result<void> set_mtime(struct timespec mtime);
  Result<void> set_mode(mode_t permissions);
  Result<void> set_owner(uid_t uid, gid_t gid);
  Result<void> sync();

  // A call that names the file holds the turn.
  [[nodiscard]] std::unique_lock<std::mutex> turn() { return std::unique_lock(naming_mutex_); }
  /// Whether a close names the archive now. EIO, EINVAL: it drops the bytes, for this reason.
  Result<bool> close(OpenFile& file, Owner owner, pid_t closer);
  /// Whether the last release names it. Drops the bytes of an archive that is not whole; the log says so.
  bool end();
  /// Whether the bytes of an archive were dropped.
  [[nodiscard]] bool has_failed() const;
  /// Whether all bytes of an archive have come, and it has no name yet.
  [[nodiscard]] bool is_due() const;
  /// Syncs it, and gives it the name of its path. EEXIST if the name is taken, unless move_to() allowed that.
  /// After a failure the bytes are dropped.
  Result<void> give_name(Storage& storage, Durability durability);
  /// Drops the bytes of an archive that has no name.
  void drop(Error why);

 private:
  Result<void> refuse(Error why);  // the caller holds mutex_
  Result<void> publish(Storage& storage, Durability durability, const std::filesystem::path& path,
                       bool replaces) const;

  const std::unique_ptr<File> file_;
  const std::filesystem::path directory_;
  std::mutex naming_mutex_;   // taken before mutex_
  mutable std::mutex mutex_;  // guards what follows; held while bytes are written, not while they are synced
  std::filesystem::path path_;
  std::optional<uid_t> replacer_;
  ArchiveStream stream_;
  Writeback writeback_;
  Writers writers_;
  bool is_named_ = false;
  std::optional<Error> failure_;
};

}  // namespace stfs
