// A library to preload into a tool: after the tool has made the directory $EXCHANGED, the library renames it to
// $EXCHANGED.moved, and makes a link to $EXCHANGED_FOR in its place. Another user who may write the directory above could do
// the same.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int mkdir(const char* path, mode_t mode) {
  int (*const real)(const char*, mode_t) = dlsym(RTLD_NEXT, "mkdir");
  const int made = real(path, mode);
  const char* const directory = getenv("EXCHANGED");
  char moved[4096];
  snprintf(moved, sizeof moved, "%s.moved", directory);
  if (made == 0 && strcmp(strrchr(path, '/'), strrchr(directory, '/')) == 0 &&
      (rename(directory, moved) != 0 || symlink(getenv("EXCHANGED_FOR"), directory) != 0))
    abort();
  return made;
}
