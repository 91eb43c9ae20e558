// Every system call on archives and on what lies beside them, behind one thin interface: the seam that
// tests replace by a disk that fails, tears and forgets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "core/byte_range.h"
#include "core/error.h"

namespace stfs {

enum class Access : std::uint8_t { ReadOnly, ReadWrite };

/// What tells one file, and one state of its content, from another.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;  // since the epoch

  [[nodiscard]] bool same_file(const FileIdentity& other) const {
    return device == other.device && inode == other.inode;
  }
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

struct FileStatus {
  FileIdentity identity;
  std::uint32_t mode = 0;  // type and permissions, as st_mode
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
};

/// One open file. Its calls may come from several threads at once; none moves a file position.
class File {
 public:
  virtual ~File() = default;

  /// Fills the buffer from offset on; an end of file before that is ArchiveCut with EIO.
  virtual Result<void> read(std::span<std::byte> to, std::uint64_t offset) const = 0;
  /// Writes all of it or fails; how much of a failed write arrived is unknown.
  virtual Result<void> write(std::span<const std::byte> from, std::uint64_t offset) = 0;
  /// Reserves disk space for the range, growing the file where it ends inside; EOPNOTSUPP is no
  /// failure here: where a file system can't reserve, a full disk shows at write.
  virtual Result<void> reserve(ByteRange range) = 0;
  /// fdatasync. After a failure the kernel calls the pages clean that never reached the disk
  /// (DURABILITY.md), so no later success may be trusted.
  virtual Result<void> sync() = 0;
  [[nodiscard]] virtual Result<FileStatus> status() const = 0;
  /// For mmap. Owned by the File.
  [[nodiscard]] virtual int descriptor() const = 0;
};

/// Where files come from.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Opens a regular file; anything else there is refused by its kind.
  virtual Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) = 0;
  /// A new file in the directory that vanishes with its last descriptor, killed process included.
  virtual Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& directory) = 0;
  /// What lies at the path now, following links.
  virtual Result<FileStatus> status(const std::filesystem::path& path) = 0;
};

/// The operating system's.
Storage& system_storage();

}  // namespace stfs
