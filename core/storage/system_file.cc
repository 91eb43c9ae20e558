#include "core/storage/system_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "core/storage/disk_space.h"
#include "core/storage/lock_holder.h"
#include "core/storage/trusted_links.h"

namespace stfs {
namespace {

constexpr std::uint64_t kMaxOffset = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());

/// Converts seconds and nanoseconds since the epoch to nanoseconds.
template <class Time>
std::int64_t ns_of(const Time& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// Calls statx, because it reports the birth time. An empty path means the descriptor itself.
constexpr unsigned kWithoutTimes =
    STATX_TYPE | STATX_MODE | STATX_UID | STATX_GID | STATX_INO | STATX_SIZE | STATX_NLINK;
constexpr unsigned kAllFields = kWithoutTimes | STATX_MTIME | STATX_BTIME;

Result<FileStatus> query_status(int directory_fd, const char* path, int flags, unsigned mask,
                                const std::string& name) {
  struct statx stx {};
  if (::statx(directory_fd, path, flags, mask, &stx) < 0) {
    return fail_system(errno, name, "stat");
  }
  return FileStatus{.identity = {.device = (std::uint64_t{stx.stx_dev_major} << 32U) | stx.stx_dev_minor,
                                 .inode = stx.stx_ino,
                                 .size_bytes = stx.stx_size,
                                 .mtime_ns = (mask & STATX_MTIME) != 0 ? ns_of(stx.stx_mtime) : 0},
                    .birth_ns = (stx.stx_mask & STATX_BTIME) != 0 ? ns_of(stx.stx_btime) : 0,
                    .mode = stx.stx_mode,
                    .uid = stx.stx_uid,
                    .gid = stx.stx_gid,
                    .links = stx.stx_nlink};
}

/// The number of times that a read of a served file may be repeated when it ends before the size that its
/// server reports.
constexpr int kMostEarlyEnds = 3;

struct flock lock_request(ByteRange range, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(range.offset);
  lock.l_len = static_cast<off_t>(range.size_bytes);
  return lock;
}

class SystemFile final : public File {
 public:
  /// @param staged_path  the name of an "unnamed" file on a file system without unnamed files; else empty.
  /// @param directory    what staged_path needs.
  SystemFile(UniqueFd fd, std::string name, std::filesystem::path staged_path,
             std::shared_ptr<const void> directory)
      : fd_(std::move(fd)),
        name_(std::move(name)),
        staged_path_(std::move(staged_path)),
        directory_(std::move(directory)) {}
  ~SystemFile() override {
    if (!staged_path_.empty()) ::unlink(staged_path_.c_str());
  }
  SystemFile(const SystemFile&) = delete;
  SystemFile& operator=(const SystemFile&) = delete;

  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override {
    int early_ends = 0;
    while (!to.empty()) {
      if (offset > kMaxOffset) return fail_system(EINVAL, name_, "read");
      const ssize_t got = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fail_system(errno, name_, "read");
      if (got == 0) {
        if (++early_ends < kMostEarlyEnds && goes_on_behind(offset)) continue;
        return fail(ErrorCode::ArchiveCut, EIO,
                    name_ + ": the file ends at byte " + std::to_string(offset) + ", " +
                        std::to_string(to.size()) + " bytes early");
      }
      to = to.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return {};
  }

  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override {
    while (!from.empty()) {
      if (offset > kMaxOffset) return fail_system(EFBIG, name_, "write");
      const ssize_t put = ::pwrite(fd_.get(), from.data(), from.size(), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return fail_system(errno, name_, "write");
      from = from.subspan(static_cast<std::size_t>(put));
      offset += static_cast<std::uint64_t>(put);
    }
    return {};
  }

  Result<void> clone_from(const File& source, std::uint64_t source_offset, ByteRange range) override {
    struct file_clone_range clone {};
    clone.src_fd = source.descriptor();
    clone.src_offset = source_offset;
    clone.src_length = range.size_bytes;
    clone.dest_offset = range.offset;
    while (::ioctl(fd_.get(), FICLONERANGE, &clone) < 0) {
      if (errno == EINTR) continue;
      // Each of these errors means "not here": no reflinks, two file systems, or an attribute that forbids
      // them.
      constexpr std::array kUnsupported = {EOPNOTSUPP, ENOTTY, EXDEV, EINVAL, EPERM};
      const bool is_unsupported = std::ranges::find(kUnsupported, errno) != kUnsupported.end();
      return fail_system(is_unsupported ? EOPNOTSUPP : errno, name_, "clone blocks");
    }
    return {};
  }

  Result<void> copy_from(const File& source, std::uint64_t source_offset, ByteRange range) override {
    constexpr std::uint64_t kFromBytes = 64 << 10;  // below this, passing pages through a pipe takes longer
    while (range.size_bytes >= kFromBytes && source.descriptor() >= 0) {
      auto from = static_cast<off_t>(source_offset);
      auto to = static_cast<off_t>(range.offset);
      const ssize_t copied =
          ::copy_file_range(source.descriptor(), &from, fd_.get(), &to, range.size_bytes, 0);
      if (copied < 0 && errno == EINTR) continue;
      // Kernels and file systems without support return various errors. A real failure occurs again below.
      if (copied <= 0) break;
      source_offset += static_cast<std::uint64_t>(copied);
      range = {range.offset + static_cast<std::uint64_t>(copied),
               range.size_bytes - static_cast<std::uint64_t>(copied)};
    }
    return File::copy_from(source, source_offset, range);
  }

  Result<void> reserve(ByteRange range) override {
    const int why = reserve_space(fd_.get(), range, GrowsFile::No);
    if (why == 0 || why == EOPNOTSUPP) return {};
    return fail_system(why, name_, "reserve space");
  }

  Result<void> reserve_size(std::uint64_t size_bytes) override {
    const int why = reserve_space(fd_.get(), {0, size_bytes}, GrowsFile::Yes);
    if (why == 0 || why == EOPNOTSUPP) return {};
    return fail_system(why, name_, "reserve space");
  }

  Result<void> resize(std::uint64_t size_bytes) override {
    if (size_bytes > kMaxOffset) return fail_system(EFBIG, name_, "resize");
    while (::ftruncate(fd_.get(), static_cast<off_t>(size_bytes)) < 0) {
      if (errno != EINTR) return fail_system(errno, name_, "resize");
    }
    return {};
  }

  Result<void> punch(ByteRange range) override {
    if (range.empty()) return {};
    while (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                       static_cast<off_t>(range.offset), static_cast<off_t>(range.size_bytes)) < 0) {
      if (errno == EINTR) continue;
      if (errno == EOPNOTSUPP || errno == ENOSYS) return {};
      return fail_system(errno, name_, "give space back");
    }
    return {};
  }

  Result<void> sync() override {
    if (::fdatasync(fd_.get()) < 0) return fail_system(errno, name_, "sync");
    return {};
  }

  Result<void> sync_all() override {
    if (::fsync(fd_.get()) < 0) return fail_system(errno, name_, "sync");
    return {};
  }

  bool is_served() const override { return filesystem_type() == FUSE_SUPER_MAGIC; }

  /// Asks the server of a served file for its size. The kernel may have taken a size from a reply that is
  /// older than our own last write, and then reads end early (seen on GlusterFS under load).
  [[nodiscard]] bool goes_on_behind(std::uint64_t offset) const {
    struct statx now {};
    return is_served() &&
           ::statx(fd_.get(), "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE, &now) == 0 &&
           now.stx_size > offset;
  }

  void begin_writeback(ByteRange range) const override {
    ::sync_file_range(fd_.get(), static_cast<off_t>(range.offset), static_cast<off_t>(range.size_bytes),
                      SYNC_FILE_RANGE_WRITE);
  }

  Result<void> finish_writeback(ByteRange range) override {
    constexpr unsigned kWait =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (::sync_file_range(fd_.get(), static_cast<off_t>(range.offset), static_cast<off_t>(range.size_bytes),
                          kWait) == 0)
      return {};
    // A file system that can't do this syncs later.
    const bool lacks_it = errno == ENOSYS || errno == EINVAL || errno == ESPIPE || errno == EOPNOTSUPP;
    return lacks_it ? Result<void>{} : fail_system(errno, name_, "sync");
  }

  void evict(ByteRange range) const override {
    ::posix_fadvise(fd_.get(), static_cast<off_t>(range.offset), static_cast<off_t>(range.size_bytes),
                    POSIX_FADV_DONTNEED);
  }

  void prefetch(ByteRange range) const override {
    // The kernel cuts each request to the readahead of the device (force_page_cache_ra() in mm/readahead.c).
    // By default the readahead of every file system is this size.
    constexpr std::uint64_t kPieceBytes = 128 << 10;
    for (std::uint64_t at = range.offset; at < range.end(); at += kPieceBytes) {
      const std::uint64_t piece_bytes = std::min(kPieceBytes, range.end() - at);
      static_cast<void>(::posix_fadvise(fd_.get(), static_cast<off_t>(at), static_cast<off_t>(piece_bytes),
                                        POSIX_FADV_WILLNEED));
    }
  }

  std::uint64_t filesystem_type() const override {
    struct statfs filesystem {};
    if (::fstatfs(fd_.get(), &filesystem) < 0) return 0;
    return static_cast<std::uint32_t>(filesystem.f_type);  // some values are negative if f_type has 32 bits
  }

  Result<FileStatus> status() const override {
    return query_status(fd_.get(), "", AT_EMPTY_PATH, kAllFields, name_);
  }

  Result<std::uint64_t> size_bytes() const override {
    const auto at = query_status(fd_.get(), "", AT_EMPTY_PATH, kWithoutTimes, name_);
    RETURN_IF_ERROR(at);
    return at->identity.size_bytes;
  }

  Result<std::uint64_t> known_size_bytes() const override {
    const auto at = query_status(fd_.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, kWithoutTimes, name_);
    RETURN_IF_ERROR(at);
    return at->identity.size_bytes;
  }

  Result<std::optional<LockConflict>> try_lock(ByteRange range, LockKind kind) override {
    struct flock lock = lock_request(range, kind == LockKind::Shared ? F_RDLCK : F_WRLCK);
    while (::fcntl(fd_.get(), F_OFD_SETLK, &lock) < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EACCES) return fail_system(errno, name_, "lock");
      return std::optional(LockConflict{});
    }
    return std::optional<LockConflict>{};
  }

  Result<bool> is_locked_by_other(ByteRange range, LockKind kind) const override {
    struct flock lock = lock_request(range, kind == LockKind::Shared ? F_RDLCK : F_WRLCK);
    while (::fcntl(fd_.get(), F_OFD_GETLK, &lock) < 0) {
      if (errno != EINTR) return fail_system(errno, name_, "look for a lock");
    }
    return lock.l_type != F_UNLCK;
  }

  std::optional<pid_t> lock_holder(ByteRange range) const override {
    const auto at = status();
    return at ? find_lock_holder(at->identity, range) : std::nullopt;
  }

  void unlock(ByteRange range) override {
    struct flock lock = lock_request(range, F_UNLCK);
    ::fcntl(fd_.get(), F_OFD_SETLK, &lock);
  }

  Result<void> set_owner(std::uint32_t uid, std::uint32_t gid) override {
    if (::fchown(fd_.get(), uid, gid) < 0) return fail_system(errno, name_, "give to another owner");
    return {};
  }

  Result<void> set_mode(std::uint32_t permissions) override {
    if (::fchmod(fd_.get(), permissions & 07777U) < 0) return fail_system(errno, name_, "set the mode");
    return {};
  }

  bool has_staged_name() const override { return !staged_path_.empty(); }
  int descriptor() const override { return fd_.get(); }

  Result<void> publish_as(const std::filesystem::path& path) {
    const std::string action = "name the journal";
    if (staged_path_.empty()) {
      // AT_EMPTY_PATH would need CAP_DAC_READ_SEARCH. The magic link does not (open(2), O_TMPFILE).
      const std::string link = "/proc/self/fd/" + std::to_string(fd_.get());
      if (::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) < 0) {
        return fail_system(errno, path.string(), action);
      }
      return {};
    }
    // Do not make a hard link in between: after a crash either the staged name or the final one must exist,
    // never both. The final name is random, so no other file is replaced.
    if (::rename(staged_path_.c_str(), path.c_str()) < 0) return fail_system(errno, path.string(), action);
    staged_path_.clear();
    return {};
  }

 private:
  UniqueFd fd_;
  std::string name_;
  std::filesystem::path staged_path_;
  const std::shared_ptr<const void> directory_;
};

}  // namespace

std::unique_ptr<File> make_system_file(UniqueFd fd, std::string name, std::filesystem::path staged_path,
                                       std::shared_ptr<const void> directory) {
  return std::make_unique<SystemFile>(std::move(fd), std::move(name), std::move(staged_path),
                                      std::move(directory));
}

Result<void> publish_system_file(File& file, const std::filesystem::path& path) {
  return static_cast<SystemFile&>(file).publish_as(path);  // the caller guarantees the type
}

Result<FileStatus> system_status(const std::filesystem::path& path, const std::string& name) {
  const auto found = follow_all_links(path);
  if (!found && found.error().errno_value == EXDEV) return tl::unexpected(found.error());
  if (!found) return fail_system(found.error().errno_value, name, "stat");
  return query_status(found->fd.get(), "", AT_EMPTY_PATH, kWithoutTimes, name);
}

Result<FileStatus> system_status_of_name(const std::filesystem::path& path) {
  // Do not use a status by the path: any user may mount a file system of FUSE on one of that user's files.
  // That file system decides how long a status takes, and whether root gets one.
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  const auto directory = follow_to_directory(parent);
  if (!directory && directory.error().errno_value == EXDEV) return tl::unexpected(directory.error());
  if (!directory) return fail_system(directory.error().errno_value, path.string(), "stat");
  struct open_how how {};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_NO_XDEV;
  const UniqueFd name(
      static_cast<int>(::syscall(SYS_openat2, directory->get(), path.filename().c_str(), &how, sizeof how)));
  if (name) return query_status(name.get(), "", AT_EMPTY_PATH, kWithoutTimes, path.string());
  if (errno == EXDEV)
    return fail(ErrorCode::System, EXDEV, path.string() + ": another file system is mounted on it");
  // Kernels before 5.6, and filters of system calls that do not know this one.
  if (errno == ENOSYS || errno == EPERM || errno == EAGAIN)
    return query_status(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, kWithoutTimes, path.string());
  return fail_system(errno, path.string(), "stat");
}

}  // namespace stfs
