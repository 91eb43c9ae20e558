// A library to preload into a program that mounts or unmounts: just before the system call it renames the directory $EXCHANGED
// to $EXCHANGED.moved, and makes a link to $EXCHANGED_FOR in its place. Another user who may write the directory above could do
// the same. With $EXCHANGED_EARLY it does so before `stfs umount` opens the directory.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
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

// The first look at the directory finds the mount, the second one opens it for the unmount.
long syscall(long number, ...) {
  static int looks;
  long argument[6];
  char directory[4096];
  va_list more;
  va_start(more, number);
  for (int at = 0; at < 6; ++at) argument[at] = va_arg(more, long);
  va_end(more);
  snprintf(directory, sizeof directory, "%s/", getenv("EXCHANGED"));
  if (getenv("EXCHANGED_EARLY") != NULL && number == SYS_openat2 &&
      strcmp((const char*)argument[1], directory) == 0 && ++looks == 2)
    exchange();
  long (*const real)(long, ...) = dlsym(RTLD_NEXT, "syscall");
  return real(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}
