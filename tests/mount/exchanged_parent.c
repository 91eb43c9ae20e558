// A library to preload into a program that mounts: just before mount(2) it renames the directory $EXCHANGED to
// $EXCHANGED.moved, and makes a link to $EXCHANGED_FOR in its place. Another user who may write the directory above could do
// the same.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int mount(const char* source, const char* target, const char* type, unsigned long flags, const void* data) {
  const char* const directory = getenv("EXCHANGED");
  char moved[4096];
  snprintf(moved, sizeof moved, "%s.moved", directory);
  if (rename(directory, moved) != 0 || symlink(getenv("EXCHANGED_FOR"), directory) != 0) abort();
  int (*const real)(const char*, const char*, const char*, unsigned long, const void*) =
      dlsym(RTLD_NEXT, "mount");
  return real(source, target, type, flags, data);
}
