// A library to preload into a program that mounts or unmounts: just before the system call it renames the directory $EXCHANGED
// to $EXCHANGED.moved, and makes a link to $EXCHANGED_FOR in its place. Another user who may write the directory above could do
// the same. With $EXCHANGED_EARLY it does so before umount2(2)'s program opens a directory.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void exchange(void) {
  static int is_done;
  const char* const directory = getenv("EXCHANGED");
  char moved[4096];
  if (is_done++ != 0) return;
  snprintf(moved, sizeof moved, "%s.moved", directory);
  if (rename(directory, moved) != 0 || symlink(getenv("EXCHANGED_FOR"), directory) != 0) abort();
}

int mount(const char* source, const char* target, const char* type, unsigned long flags, const void* data) {
  exchange();
  int (*const real)(const char*, const char*, const char*, unsigned long, const void*) =
      dlsym(RTLD_NEXT, "mount");
  return real(source, target, type, flags, data);
}

int umount2(const char* target, int flags) {
  exchange();
  int (*const real)(const char*, int) = dlsym(RTLD_NEXT, "umount2");
  return real(target, flags);
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  if (getenv("EXCHANGED_EARLY") != NULL && strcmp(path, getenv("EXCHANGED")) == 0) exchange();
  int (*const real)(const char*, int, ...) = dlsym(RTLD_NEXT, "open64");
  return real(path, flags, mode);
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open64(path, flags, mode);
}
