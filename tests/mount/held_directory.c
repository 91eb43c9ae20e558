// held_directory FILE PID DIRECTORY: holds the kernel's lock of a directory for as long as process PID, which serves the mount
// that FILE lies in, is stopped: the kernel writes the listing into a map of FILE, and waits for its bytes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const size_t size = 1 << 16;
  const int file = open(argv[1], O_RDWR);
  char* const map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int directory = open(argv[3], O_RDONLY | O_DIRECTORY);
  if (map == MAP_FAILED || directory < 0 || kill(atoi(argv[2]), SIGSTOP) != 0) return 3;
  puts("ready");
  fflush(stdout);
  syscall(SYS_getdents64, directory, map, size);
  return 0;
}
