// One thin interface for every system call on archives, journals and their directory. Tests replace it by a
// model of a disk that fails, tears writes and loses power.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

enum class Access : std::uint8_t { ReadOnly, ReadWrite };

/// The symbolic links that an opening follows.
enum class Links : std::uint8_t {
  All,      // for a program that only reads, and shows the bytes to its caller alone
  Trusted,  // trusted_links.h: for a program that writes, or shows the bytes to other users
};

/// Identifies a file and one state of its content.
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
  std::int64_t birth_ns = 0;  // since the epoch; 0 if the file system does not record it
  std::uint32_t mode = 0;     // type and permissions, as st_mode
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t links = 1;  // number of the file's names (hard links)
};

/// One boot of one host's kernel. Bytes that are not synced are lost when it ends.
struct Boot {
  std::array<std::uint8_t, 16> id{};  // random at every start of the kernel; zeros if unknown
  std::uint64_t host = 0;             // the same at every start of this host; 0 if unknown

  [[nodiscard]] bool is_known() const { return id != std::array<std::uint8_t, 16>{}; }
  friend bool operator==(const Boot&, const Boot&) = default;
};

enum class LockKind : std::uint8_t { Shared, Exclusive };

/// The result of try_lock() if another open file description holds a conflicting lock.
struct LockConflict {};

/// Returns true if the error of try_lock() means that this file system has no locks.
inline bool lacks_locks(const Error& error) {
  return error.errno_value == ENOLCK || error.errno_value == ENOSYS || error.errno_value == EOPNOTSUPP;
}

/// The largest range that a journal's record names: the hashes of its blocks must fit into little memory.
inline constexpr std::uint64_t kMostRangeBytes = 256 << 20;

/// One open file. Several threads may call at a time. No call moves a file position.
class File {
 public:
  virtual ~File() = default;

  /// Fills the buffer from `offset` on. ArchiveCut with EIO if the file ends before the buffer is full.
  virtual Result<void> read(std::span<std::byte> to, std::uint64_t offset) const = 0;
  /// Writes all bytes or fails. After a failure any part of the bytes may have been written.
  virtual Result<void> write(std::span<const std::byte> from, std::uint64_t offset) = 0;
  /// Makes `range` of this file share the blocks of the same-sized range of `source` that starts at
  /// source_offset (FICLONERANGE). All three are multiples of 4096. EOPNOTSUPP if the file system can't: the
  /// caller then copies.
  virtual Result<void> clone_from(const File& source, std::uint64_t source_offset, ByteRange range) = 0;
  /// Copies the same-sized range of `source` that starts at source_offset. Where the kernel can, the bytes do
  /// not pass through our memory.
  virtual Result<void> copy_from(const File& source, std::uint64_t source_offset, ByteRange range);
  /// Preallocates disk space for the range without changing the file's size. Succeeds even if the file system
  /// can't preallocate (EOPNOTSUPP): write() then reports a full disk. A reservation covers one write:
  /// rewriting a shared or copy-on-write block needs new space.
  virtual Result<void> reserve(ByteRange range) = 0;
  /// Does the same for a file that will have at least this size. May give the file that size at once: some
  /// file systems can't preallocate otherwise.
  virtual Result<void> reserve_size(std::uint64_t size_bytes) { return reserve({0, size_bytes}); }
  /// Cuts the file, or lengthens it with zeros.
  virtual Result<void> resize(std::uint64_t size_bytes);
  /// Gives the disk space of a range of whole blocks back. The range may be empty. Its bytes read as zeros
  /// from now on. Succeeds even if the file system can't do it (EOPNOTSUPP): the space then stays in use.
  virtual Result<void> punch(ByteRange range);
  /// fdatasync. After a failure the kernel marks pages clean that never reached the disk
  /// (core/DURABILITY.md), so a later success proves nothing.
  virtual Result<void> sync() = 0;
  /// fsync: the mode, the owner and the attributes as well. Fails as sync() does.
  virtual Result<void> sync_all() { return sync(); }
  /// Returns true if a program serves the file system (FUSE), perhaps for several hosts. The program may
  /// cache our writes until a sync, and others' writes until refresh().
  [[nodiscard]] virtual bool is_served() const { return false; }
  /// After this call, status() and read() of these ranges see everything that other hosts have written and
  /// synced. Call it after taking the lock under which they wrote. Does nothing if is_served() is false.
  Result<void> refresh(std::span<const ByteRange> ranges);
  /// Does the part of refresh() that read() needs. Bytes that this host has written and not synced stay.
  void forget(ByteRange range) const;
  /// Asks the kernel to start writing the range to the disk, so that a later sync has less to do. Reports
  /// neither a result nor a failure.
  virtual void begin_writeback(ByteRange range) const { static_cast<void>(range); }
  /// Waits until the disk has been given all that was written to the range so far, so that a later sync has
  /// less to do. The later sync is still needed. Treat a failure like a failure of sync().
  virtual Result<void> finish_writeback(ByteRange range) {
    static_cast<void>(range);
    return {};
  }
  /// Asks the kernel to evict its cached pages of the range. Reports neither a result nor a failure.
  virtual void evict(ByteRange range) const { static_cast<void>(range); }
  /// Asks the kernel to fetch the range, without waiting. Reports neither a result nor a failure.
  virtual void prefetch(ByteRange range) const { static_cast<void>(range); }
  /// Returns the version of a file on a web server: its digest, or its ETag and its address. Files with the
  /// same version have the same bytes. Empty for a file of this host, and for one whose server gives neither.
  [[nodiscard]] virtual std::string version() const { return {}; }
  /// f_type of statfs(2); 0 if unknown.
  [[nodiscard]] virtual std::uint64_t filesystem_type() const { return 0; }
  /// kMostRangeBytes, or less if a test's model must see records of many ranges. A whole number of blocks.
  [[nodiscard]] virtual std::uint64_t most_range_bytes() const { return kMostRangeBytes; }
  [[nodiscard]] virtual Result<FileStatus> status() const = 0;
  /// The file's size, without asking for times. With fine-grained timestamps (Linux 6.13), each query of
  /// times makes the next write change the inode too, and the following sync write the inode out.
  [[nodiscard]] virtual Result<std::uint64_t> size_bytes() const;
  /// The size that this kernel knows and that its own reads use. Asks no remote store.
  [[nodiscard]] virtual Result<std::uint64_t> known_size_bytes() const { return size_bytes(); }

  /// Takes a lock of the open file description (F_OFD_SETLK), without waiting. The lock ends with unlock() or
  /// with the last descriptor, also when the process is killed. A conflict is a result, not an error. ENOLCK,
  /// ENOSYS and EOPNOTSUPP mean that the file system has no locks.
  virtual Result<std::optional<LockConflict>> try_lock(ByteRange range, LockKind kind) = 0;
  virtual void unlock(ByteRange range) = 0;
  /// Returns true if another open file description holds a lock on the range that conflicts with a lock of
  /// this kind (F_OFD_GETLK). Takes no lock, so that no other process sees a conflict. Also works on a file
  /// that was opened for reading. Fails as try_lock() does.
  [[nodiscard]] virtual Result<bool> is_locked_by_other(ByteRange range, LockKind kind) const;
  /// A process that holds such a lock on the range, if it can be found. Slow: for messages only.
  [[nodiscard]] virtual std::optional<pid_t> lock_holder(ByteRange range) const = 0;

  /// fchown. EPERM if this process may not give the file to that user or group.
  virtual Result<void> set_owner(std::uint32_t uid, std::uint32_t gid);
  /// fchmod: permissions only. Ignores the umask.
  virtual Result<void> set_mode(std::uint32_t permissions);

  /// Returns true if create_unnamed() gave this file its fallback name, because the file system has no
  /// unnamed files.
  [[nodiscard]] virtual bool has_staged_name() const { return false; }
  /// The descriptor, for mmap. The File owns it.
  [[nodiscard]] virtual int descriptor() const = 0;
};

/// Opens and names files. Any thread may call.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Opens a regular file. Any other kind of file is refused, and the error names the kind.
  virtual Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) = 0;
  /// Does the same, but also refuses a symbolic link as the last component (ELOOP). Use it for names that any
  /// user with write access to the directory could have made. Neither call waits: if the file's owner holds a
  /// lease on it, the call returns EAGAIN at once.
  virtual Result<std::unique_ptr<File>> open_no_link(const std::filesystem::path& path, Access access) = 0;
  /// Opens an open file once more, for other access. `path` is the path it was opened at. ESTALE
  /// (ArchiveChanged) if the file can't be opened again and the path now names another file, or none.
  virtual Result<std::unique_ptr<File>> open_again(const File& file, const std::filesystem::path& path,
                                                   Access access);
  /// Fails as opening for writing would (EACCES, EPERM, EROFS), as far as that can be known without opening:
  /// on overlayfs, opening for writing copies the file.
  virtual Result<void> check_writable(const std::filesystem::path& path);
  /// Makes a new file in the directory. It vanishes with its last descriptor, also when the process is
  /// killed, unless publish() names it. At first only its owner may read and write it. If the file system has
  /// no unnamed files (EOPNOTSUPP), the file has the name `fallback` from the start. `fallback` must not
  /// exist.
  virtual Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& fallback) = 0;
  /// Names a file of create_unnamed(), atomically. EEXIST if the name is taken. Durable after
  /// sync_directory().
  virtual Result<void> publish(File& file, const std::filesystem::path& path) = 0;
  virtual Result<void> remove(const std::filesystem::path& path) = 0;
  /// Opens a file for reading. EACCES: a link on the way is not followed.
  virtual Result<std::unique_ptr<File>> open_behind(const std::filesystem::path& path, Links links) {
    static_cast<void>(links);
    return open(path, Access::ReadOnly);
  }
  /// Makes a new file that has its name at once, and opens it for writing. EEXIST if the name is taken.
  /// @param mode  the permissions, before the umask.
  virtual Result<std::unique_ptr<File>> create(const std::filesystem::path& path, mode_t mode);
  /// Gives a file another name in the same directory, atomically. Durable after sync_directory().
  /// @param replaces  whether another file of that name is replaced; otherwise EEXIST.
  virtual Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to,
                              bool replaces);
  /// Gives an open file the mode, owner and attributes of the file at the path (file_attributes.h).
  virtual Result<void> copy_attributes(const std::filesystem::path& from, File& to);
  /// Does the same from an open file, whatever its path names now.
  virtual Result<void> copy_attributes(const File& from, File& to);
  /// Replaces a regular file by new bytes, completely or not at all, even after a loss of power: a new file
  /// takes its name, mode, owner and attributes. The path must be no link. Durable when it returns. With
  /// Durability::Process nothing is synced: a loss of power can leave the old file, the new file or an empty
  /// one.
  /// @param temporary  the new file's name until then, in the same directory. A file of that name is removed.
  virtual Result<void> replace(const std::filesystem::path& path, const std::filesystem::path& temporary,
                               std::span<const std::byte> content, Durability durability);
  /// Does the same with a file of create_unnamed() that has the content: no disk space is needed. If there
  /// was no file, the new one keeps its own mode. EOPNOTSUPP: this storage can't.
  virtual Result<void> replace_with(File& content, const std::filesystem::path& path,
                                    const std::filesystem::path& temporary, Durability durability);
  /// Fails as replace() would if the path's directory is missing or may not be written (ENOENT, EACCES,
  /// EROFS).
  virtual Result<void> check_replaceable(const std::filesystem::path& path);
  /// fsync of a directory: its names are then on stable storage.
  virtual Result<void> sync_directory(const std::filesystem::path& directory) = 0;
  /// Makes a directory in an existing one, if it is missing. Its name is durable after sync_directory() of
  /// the parent.
  /// @return whether it is new. EEXIST if something else has the name.
  virtual Result<bool> make_directory(const std::filesystem::path& path);
  /// Removes an empty directory. ENOTEMPTY if it has entries.
  virtual Result<void> remove_directory(const std::filesystem::path& path);
  /// Takes the lock of flock(2) on a file or a directory, without waiting. Programs other than this one use
  /// that lock. The lock is held until the descriptor is closed, also by the end of the process.
  /// Opens nothing but a regular file of one name and a directory. The last component must be no link.
  /// @return nothing if another process holds a conflicting lock. EOPNOTSUPP, ENOSYS and ENOLCK mean that the
  /// file system has no locks. ELOOP: a link. EMLINK: a file of several names. EINVAL: another kind of file.
  /// EXDEV: another user's mount.
  virtual Result<std::optional<UniqueFd>> try_flock(const std::filesystem::path& path, LockKind kind);
  /// Names of the entries that start with the prefix, unordered.
  virtual Result<std::vector<std::string>> list(const std::filesystem::path& directory,
                                                const std::string& prefix) = 0;
  /// Returns the status of the file at the path, following links. Asks for no times (File::size_bytes()), so
  /// its mtime is 0.
  virtual Result<FileStatus> status(const std::filesystem::path& path) = 0;
  /// Returns the status of the name itself: a link is not followed. Never waits for the file's owner. EXDEV:
  /// another file system is mounted on the name.
  virtual Result<FileStatus> status_of_name(const std::filesystem::path& path);
  /// Returns true if the operating system has the files, and false for a test's storage.
  [[nodiscard]] virtual bool is_system() const { return false; }
  /// The path by which the kernel reaches a file. Differs from the path for people if this storage has opened
  /// a directory (storage_in()).
  [[nodiscard]] virtual std::filesystem::path reached(const std::filesystem::path& path) const {
    return path;
  }
  /// The current boot of this kernel.
  [[nodiscard]] virtual Boot boot() const { return {}; }
  /// The effective user of this process.
  [[nodiscard]] virtual std::uint32_t user() const;
};

/// Returns these bytes of a file as text. Fails as File::read() does.
Result<std::string> read_text(const File& file, ByteRange range);
/// Reads a range in pieces that stay in the processor's cache, and calls on_piece for each.
using OnPiece = std::function<Result<void>(std::span<const std::byte> piece, std::uint64_t offset)>;
Result<void> for_each_piece(const File& file, ByteRange range, const OnPiece& on_piece);
/// Returns the whole file as text, or its first `most_bytes`.
Result<std::string> read_text(const File& file,
                              std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max());

/// Removes a file. Does nothing if there is none.
Result<void> remove_if_there(Storage& storage, const std::filesystem::path& path);

/// The operating system's storage.
Storage& system_storage();

struct OpenDirectory;
/// Returns the operating system's storage, in which this directory is the one that was opened, whatever its
/// path names now. All paths in the directory reach its files. Messages have the paths for people.
/// @param folder     the path of the directory, without links.
/// @param directory  has a descriptor. Calls with the same directory and path share the storage.
std::shared_ptr<Storage> storage_in(const std::filesystem::path& folder, OpenDirectory directory);

}  // namespace stfs
