// held_directory FILE DIRECTORY: prints "ready", waits for a line, and holds the kernel's lock of a directory while the
// process that serves the mount of FILE is stopped: the kernel writes the listing into a map of FILE, and waits for the
// bytes of FILE.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const size_t size = 1 << 16;
  const int file = open(argv[1], O_RDWR);
  char* const map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int directory = open(argv[2], O_RDONLY | O_DIRECTORY);
  if (map == MAP_FAILED || directory < 0) return 3;
  puts("ready");
  fflush(stdout);
  if (getchar() == EOF) return 4;
  syscall(SYS_getdents64, directory, map, size);
  return 0;
}
