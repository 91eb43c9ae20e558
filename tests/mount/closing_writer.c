// A program that writes a tensor and then ends in one of many ways. For users that cannot run the tests'
// Python.
//
//   closing_writer TENSOR w|t|r THREADS BYTES exit|thread|kill|close|sync|wait
//
// Opens TENSOR (w: O_WRONLY, t: with O_TRUNC, r: O_RDWR), starts THREADS that sleep, writes BYTES times 'w',
// and
//   exit    calls exit(0) with the descriptor open
//   thread  exits from a second thread, while the first one sleeps
//   kill    sends itself SIGTERM
//   close   closes the descriptor, and then exits; with 5 where that fails
//   sync    calls fsync, and then exits; with 5 where that fails
//   wait    prints "ready" and sleeps
// With NOT_DUMPABLE in the environment only root may inspect the process, as with a setuid program.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void* sleeps(void* unused) {
  for (;;) pause();
  return unused;
}

static void* exits(void* unused) {
  _exit(0);
  return unused;
}

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  if (getenv("NOT_DUMPABLE") != NULL) prctl(PR_SET_DUMPABLE, 0);
  const int flags = argv[2][0] == 'r' ? O_RDWR : argv[2][0] == 't' ? O_WRONLY | O_TRUNC : O_WRONLY;
  const int fd = open(argv[1], flags);
  if (fd < 0) {
    perror(argv[1]);
    return 3;
  }
  pthread_t thread;
  for (int left = atoi(argv[3]); left > 0; --left) pthread_create(&thread, NULL, sleeps, NULL);
  const size_t size = strtoul(argv[4], NULL, 10);
  char* bytes = malloc(size);
  memset(bytes, 'w', size);
  for (size_t done = 0; done < size;) {
    const ssize_t count = write(fd, bytes + done, size - done);
    if (count < 0) {
      perror("write");
      return 4;
    }
    done += (size_t)count;
  }
  if (strcmp(argv[5], "thread") == 0) pthread_create(&thread, NULL, exits, NULL);
  if (strcmp(argv[5], "kill") == 0) kill(getpid(), SIGTERM);
  if (strcmp(argv[5], "close") == 0 && close(fd) != 0) {
    perror("close");
    return 5;
  }
  if (strcmp(argv[5], "sync") == 0 && fsync(fd) != 0) {
    perror("fsync");
    return 5;
  }
  if (strchr("ecs", argv[5][0]) != NULL) exit(0);
  puts("ready");
  fflush(stdout);
  for (;;) pause();
}
