#include "core/storage/disk_space.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

namespace stfs {
namespace {

/// Returns true if the range needs more blocks than the disk has free. The file's own blocks may be in the
/// range, so they are added to the free ones.
bool is_hopeless(int fd, std::uint64_t size_bytes) {
  struct stat file {};
  struct statvfs disk {};
  if (::fstat(fd, &file) != 0 || ::fstatvfs(fd, &disk) != 0) return false;
  // Some FUSE file systems do not report their size.
  if (disk.f_blocks == 0 || disk.f_frsize == 0) return false;
  const std::uint64_t has_blocks = static_cast<std::uint64_t>(file.st_blocks) * 512 / disk.f_frsize;
  return size_bytes / disk.f_frsize > disk.f_bfree + has_blocks;
}

int allocate(int fd, int mode, ByteRange range) {
  while (::fallocate(fd, mode, static_cast<off_t>(range.offset), static_cast<off_t>(range.size_bytes)) != 0) {
    if (errno == EINTR) continue;
    return errno == ENOSYS ? EOPNOTSUPP : errno;
  }
  return 0;
}

}  // namespace

std::optional<FreeSpace> free_space(int fd) {
  struct stat file {};
  struct statvfs disk {};
  if (::fstat(fd, &file) != 0 || ::fstatvfs(fd, &disk) != 0 || disk.f_blocks == 0) return std::nullopt;
  return FreeSpace{.device = file.st_dev,
                   .free_bytes = disk.f_bfree * disk.f_frsize,
                   .available_bytes = disk.f_bavail * disk.f_frsize};
}

int reserve_space(int fd, ByteRange range, GrowsFile grows) {
  if (range.empty()) return 0;
  const auto most = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (range.offset > most || range.size_bytes > most - range.offset) return EFBIG;
  const int mode = grows == GrowsFile::Yes ? 0 : FALLOC_FL_KEEP_SIZE;
  if (is_hopeless(fd, range.size_bytes)) {
    // A file system that can't preallocate may hold more than its number of blocks. A request for one byte
    // shows which case this is.
    const int why = allocate(fd, mode, {range.offset, 1});
    return why == 0 ? ENOSPC : why;
  }
  return allocate(fd, mode, range);
}

bool has_bytes(int fd, ByteRange range, std::uint64_t due_bytes) {
  std::uint64_t found_bytes = 0;
  for (std::uint64_t at = range.offset; found_bytes < due_bytes && at < range.end();) {
    const off_t begin = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    // ENXIO: a hole up to the end of the file.
    if (begin < 0) return errno != ENXIO;
    const off_t end = ::lseek(fd, begin, SEEK_HOLE);
    if (end <= begin) return true;
    at = static_cast<std::uint64_t>(end);
    found_bytes +=
        range.intersection({static_cast<std::uint64_t>(begin), at - static_cast<std::uint64_t>(begin)})
            .size_bytes;
  }
  return found_bytes >= due_bytes;
}

}  // namespace stfs
