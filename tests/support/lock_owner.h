// Another process that holds an open-file-description lock on a file until the test lets it go.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace stfs::test {

class LockOwner {
 public:
  /// Returns when the lock is held. The offset is an offset in the file: an archive's locks begin at 2^62.
  /// @param is_of_process  takes a lock of the process (F_SETLK) instead.
  LockOwner(const std::string& file, std::uint64_t offset, std::uint64_t size_bytes, short type = F_WRLCK,
            bool is_of_process = false) {
    int ready[2];
    if (::pipe(ready) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) hold(file, offset, size_bytes, type, is_of_process, ready[1]);
    ::close(ready[1]);
    char answer = 0;
    const bool is_held = ::read(ready[0], &answer, 1) == 1;
    ::close(ready[0]);
    if (!is_held) throw std::runtime_error("the child could not lock " + file);
  }
  ~LockOwner() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  LockOwner(const LockOwner&) = delete;
  LockOwner& operator=(const LockOwner&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  [[noreturn]] static void hold(const std::string& file, std::uint64_t offset, std::uint64_t size_bytes,
                                short type, bool is_of_process, int ready) {
    const int fd = ::open(file.c_str(), (type == F_RDLCK ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(offset);
    lock.l_len = static_cast<off_t>(size_bytes);
    if (fd < 0 || ::fcntl(fd, is_of_process ? F_SETLK : F_OFD_SETLK, &lock) != 0) ::_exit(1);
    if (::write(ready, "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }

  pid_t pid_ = -1;
};

}  // namespace stfs::test
