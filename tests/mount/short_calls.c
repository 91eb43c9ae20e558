// A library to preload: system calls do less than they were asked for, or are interrupted, as any kernel may do.
// SHORT_CALLS names the calls that are refused: tmpfile reserve copy. Each third of the other
// calls is cut short, each seventh fails with EINTR. With `end` in SHORT_CALLS, files seem to be served by a
// program (FUSE), and each fifth read finds the end of its file, as with a stale size. With SHORT_CALLS_TELL,
// the process prints at its end on stderr how many such calls there were.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <unistd.h>

static atomic_uint calls, cut_short, interrupted, refused;

static int is_refused(const char* what) {
  const char* const all = getenv("SHORT_CALLS");
  if (all == NULL || strstr(all, what) == NULL) return 0;
  ++refused;
  return 1;
}

/// The number of bytes that the call may process; 0 if it is interrupted.
static size_t allowed(size_t size_bytes) {
  const unsigned number = ++calls;
  if (number % 7 == 0) {
    ++interrupted;
    errno = EINTR;
    return 0;
  }
  if (number % 3 != 0 || size_bytes < 2) return size_bytes;
  ++cut_short;
  return 1 + number * 2654435761U % (size_bytes - 1);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/// True for a read that must find an early end of the file.
static int ends_early(void) {
  static atomic_uint reads;
  return ++reads % 5 == 0 && is_refused("end");
}

#define READ(name)                                                      \
  ssize_t name(int fd, void* buffer, size_t size_bytes, off_t offset) { \
    if (ends_early()) return 0;                                         \
    const size_t most = size_bytes == 0 ? 0 : allowed(size_bytes);      \
    if (size_bytes != 0 && most == 0) return -1;                        \
    return NEXT(name)(fd, buffer, most, offset);                        \
  }
READ(pread)
READ(pread64)

#define SERVED(name, Status)                                 \
  int name(int fd, struct Status* status) {                  \
    const int done = NEXT(name)(fd, status);                 \
    const char* const all = getenv("SHORT_CALLS");           \
    const int is_served = all != NULL && strstr(all, "end"); \
    if (is_served) status->f_type = 0x65735546;              \
    return done;                                             \
  }
SERVED(fstatfs, statfs)
SERVED(fstatfs64, statfs64)

#define SHORTEN(name, Buffer)                                            \
  ssize_t name(int fd, Buffer buffer, size_t size_bytes, off_t offset) { \
    const size_t most = size_bytes == 0 ? 0 : allowed(size_bytes);       \
    if (size_bytes != 0 && most == 0) return -1;                         \
    return NEXT(name)(fd, buffer, most, offset);                         \
  }
SHORTEN(pwrite, const void*)
SHORTEN(pwrite64, const void*)

ssize_t copy_file_range(int in, off64_t* from, int out, off64_t* to, size_t size_bytes, unsigned flags) {
  if (is_refused("copy")) {
    errno = EXDEV;
    return -1;
  }
  const size_t most = size_bytes == 0 ? 0 : allowed(size_bytes);
  if (size_bytes != 0 && most == 0) return -1;
  return NEXT(copy_file_range)(in, from, out, to, most, flags);
}

#define RESERVE(name)                                          \
  int name(int fd, int mode, off_t offset, off_t size_bytes) { \
    if (is_refused("reserve")) {                               \
      errno = EOPNOTSUPP;                                      \
      return -1;                                               \
    }                                                          \
    return NEXT(name)(fd, mode, offset, size_bytes);           \
  }
RESERVE(fallocate)
RESERVE(fallocate64)

#define OPEN(name)                                                   \
  int name(const char* path, int flags, ...) {                       \
    va_list more;                                                    \
    va_start(more, flags);                                           \
    const mode_t mode = va_arg(more, mode_t);                        \
    va_end(more);                                                    \
    if ((flags & O_TMPFILE) == O_TMPFILE && is_refused("tmpfile")) { \
      errno = EOPNOTSUPP;                                            \
      return -1;                                                     \
    }                                                                \
    return NEXT(name)(path, flags, mode);                            \
  }
OPEN(open)
OPEN(open64)

__attribute__((destructor)) static void tell(void) {
  if (getenv("SHORT_CALLS_TELL") == NULL) return;
  fprintf(stderr, "short_calls: %u calls, %u short, %u interrupted, %u refused\n", calls, cut_short,
          interrupted, refused);
}
