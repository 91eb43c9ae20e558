// Every system call on archives, journals and their directory, behind one thin interface: the seam that
// tests replace by a disk that fails, tears and forgets.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"

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
  std::int64_t birth_ns = 0;  // since the epoch; 0 where the file system does not record it
  std::uint32_t mode = 0;     // type and permissions, as st_mode
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t links = 1;  // names that the file has
};

/// One run of one host's kernel. What is not synced is lost when it ends.
struct Boot {
  std::array<std::uint8_t, 16> id{};  // random at every start of the kernel; zeros where that is not known
  std::uint64_t host = 0;             // the same at every start of this host; 0 where that is not known

  [[nodiscard]] bool is_known() const { return id != std::array<std::uint8_t, 16>{}; }
  friend bool operator==(const Boot&, const Boot&) = default;
};

enum class LockKind : std::uint8_t { Shared, Exclusive };

/// Somebody else's lock is in the way.
struct LockConflict {};

/// True of an error of try_lock() that means: this file system has no locks.
inline bool lacks_locks(const Error& error) {
  return error.errno_value == ENOLCK || error.errno_value == ENOSYS || error.errno_value == EOPNOTSUPP;
}

/// A journal's record names no longer range: the hashes of its blocks must fit into little memory.
inline constexpr std::uint64_t kMostRangeBytes = 256 << 20;

/// One open file. Its calls may come from several threads at once; none moves a file position.
class File {
 public:
  virtual ~File() = default;

  /// Fills the buffer from offset on; an end of file before that is ArchiveCut with EIO.
  virtual Result<void> read(std::span<std::byte> to, std::uint64_t offset) const = 0;
  /// Writes all of it or fails; how much of a failed write arrived is unknown.
  virtual Result<void> write(std::span<const std::byte> from, std::uint64_t offset) = 0;
  /// Makes `range` of this file share the blocks of the same-sized range of `source` that starts at
  /// source_offset (FICLONERANGE); all three are multiples of 4096. EOPNOTSUPP where the file system
  /// can't: the caller copies then.
  virtual Result<void> clone_from(const File& source, std::uint64_t source_offset, ByteRange range) = 0;
  /// Copies the same-sized range of `source` that starts at source_offset: without a detour through our
  /// memory where the kernel can.
  virtual Result<void> copy_from(const File& source, std::uint64_t source_offset, ByteRange range);
  /// Reserves disk space for the range without changing the file's size; EOPNOTSUPP is no failure here:
  /// where a file system can't reserve, a full disk shows at write. A reservation covers one write: rewriting
  /// a shared or copy-on-write block needs new space.
  virtual Result<void> reserve(ByteRange range) = 0;
  /// fdatasync. After a failure the kernel calls the pages clean that never reached the disk
  /// (DURABILITY.md), so no later success may be trusted.
  virtual Result<void> sync() = 0;
  /// A program serves the file system (FUSE), for other hosts too, perhaps: it may cache what we write until
  /// a sync, and what others write until refresh().
  [[nodiscard]] virtual bool is_served() const { return false; }
  /// What other hosts have written and synced shows in status(), and in read() of these ranges, from here on.
  /// Call it after taking the lock under which they wrote. Does nothing where is_served() is false.
  Result<void> refresh(std::span<const ByteRange> ranges);
  /// The part of refresh() that is about read(); bytes that this host has written and not synced stay.
  void forget(ByteRange range) const;
  /// Asks the kernel to begin writing the range to the disk, so that a later sync finds less to do. Promises
  /// nothing and reports nothing.
  virtual void begin_writeback(ByteRange range) const { static_cast<void>(range); }
  /// Asks the kernel to forget what it has cached of the range. Promises nothing and reports nothing.
  virtual void evict(ByteRange range) const { static_cast<void>(range); }
  /// Asks the kernel to fetch the range, without waiting for it. Promises nothing and reports nothing.
  virtual void prefetch(ByteRange range) const { static_cast<void>(range); }
  /// f_type of statfs(2); 0 where that is not known.
  [[nodiscard]] virtual std::uint64_t filesystem_type() const { return 0; }
  /// kMostRangeBytes, or less where a model must see records of many ranges: a whole number of blocks.
  [[nodiscard]] virtual std::uint64_t most_range_bytes() const { return kMostRangeBytes; }
  [[nodiscard]] virtual Result<FileStatus> status() const = 0;
  /// Asks for no times. Where timestamps are as fine as they are asked for (Linux 6.13), each question makes
  /// the next write change the inode too, and the sync behind it write the inode out.
  [[nodiscard]] virtual Result<std::uint64_t> size_bytes() const;
  /// As this kernel knows it, which is what its own reads go by: a store with a long way is not asked again.
  [[nodiscard]] virtual Result<std::uint64_t> known_size_bytes() const { return size_bytes(); }

  /// Takes a lock of the open file description (F_OFD_SETLK), without waiting. It ends with unlock() or
  /// the last descriptor, a killed process included. A conflict is no error; ENOLCK, ENOSYS and
  /// EOPNOTSUPP mean that the file system has no locks.
  virtual Result<std::optional<LockConflict>> try_lock(ByteRange range, LockKind kind) = 0;
  virtual void unlock(ByteRange range) = 0;
  /// Another open file description holds a lock on the range that a lock of this kind would conflict with
  /// (F_OFD_GETLK). Takes no lock, so that nobody else sees a conflict. Works on a file that was opened
  /// for reading too. The errors are try_lock()'s.
  [[nodiscard]] virtual Result<bool> is_locked_by_other(ByteRange range, LockKind kind) const;
  /// A process that holds such a lock on the range, where that can be found out: slow, for messages.
  [[nodiscard]] virtual std::optional<pid_t> lock_holder(ByteRange range) const = 0;

  /// fchown. EPERM where this process may not give the file to that user or that group.
  virtual Result<void> set_owner(std::uint32_t uid, std::uint32_t gid);
  /// fchmod: permissions only, and the umask does not count.
  virtual Result<void> set_mode(std::uint32_t permissions);

  /// A file of create_unnamed() that has the fallback name for want of unnamed files.
  [[nodiscard]] virtual bool has_staged_name() const { return false; }
  /// For mmap. Owned by the File.
  [[nodiscard]] virtual int descriptor() const = 0;
};

/// Where files come from. Any thread may call.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Opens a regular file; anything else there is refused by its kind.
  virtual Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) = 0;
  /// The same, refusing a symbolic link in the last component too (ELOOP): for names that anybody who
  /// may write to the directory could have planted.
  virtual Result<std::unique_ptr<File>> open_no_link(const std::filesystem::path& path, Access access) = 0;
  /// Opens an open file once more, for other access. `path` is where the file was opened. ESTALE
  /// (ArchiveChanged) where the file can't be opened again and another file, or none, lies at the path now.
  virtual Result<std::unique_ptr<File>> open_again(const File& file, const std::filesystem::path& path,
                                                   Access access);
  /// Fails as opening for writing would (EACCES, EPERM, EROFS), as far as that can be told without opening:
  /// on overlayfs, opening for writing copies the file.
  virtual Result<void> check_writable(const std::filesystem::path& path);
  /// A new file in the directory that vanishes with its last descriptor, killed process included, unless
  /// publish() gives it a name. Only its owner may read and write it at first. Where the file system has no
  /// such thing (EOPNOTSUPP in the seam's own terms), it has the name `fallback` from the start, which must
  /// not exist.
  virtual Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& fallback) = 0;
  /// Gives a file of create_unnamed() its name, atomically; EEXIST where that is taken. Durable after
  /// sync_directory().
  virtual Result<void> publish(File& file, const std::filesystem::path& path) = 0;
  virtual Result<void> remove(const std::filesystem::path& path) = 0;
  /// fsync of a directory: its names are on stable storage then.
  virtual Result<void> sync_directory(const std::filesystem::path& directory) = 0;
  /// Names of the entries that start with the prefix, in no order.
  virtual Result<std::vector<std::string>> list(const std::filesystem::path& directory,
                                                const std::string& prefix) = 0;
  /// What lies at the path now, following links; without times (File::size_bytes()), its mtime is 0.
  virtual Result<FileStatus> status(const std::filesystem::path& path) = 0;
  /// This kernel's run.
  [[nodiscard]] virtual Boot boot() const { return {}; }
  /// The effective user that this process has.
  [[nodiscard]] virtual std::uint32_t user() const;
};

/// These bytes of a file as text; fails as File::read() does.
Result<std::string> read_text(const File& file, ByteRange range);

/// The operating system's.
Storage& system_storage();

}  // namespace stfs
