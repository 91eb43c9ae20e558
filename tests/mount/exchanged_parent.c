// To be preloaded into a program that mounts: just before mount(2) the directory $EXCHANGED is renamed to
// $EXCHANGED.moved, and a link to $EXCHANGED_FOR gets its name, as another user could do who may write the directory above.
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
