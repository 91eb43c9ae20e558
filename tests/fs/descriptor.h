// A process's file descriptor of a tensor, as the driver sees it.
#pragma once

#include <optional>
#include <string_view>

#include "tests/fs/driven_filesystem.h"

namespace stfs::test {

/// The kernel's identifier of a process's table of file descriptors, and the process's pid.
struct Process {
  Owner owner = 0;
  pid_t pid = 0;
};

inline Process this_process() {
  return {.owner = 1, .pid = ::getpid()};
}

class Descriptor {
 public:
  /// Throws if the open fails. For O_TRUNC the kernel sends a separate request, and so does this constructor.
  Descriptor(const DrivenFilesystem& mount, std::string_view file_name, int flags,
             Process opener = this_process())
      : filesystem_(*mount), ino_(mount.ino(file_name)), process_(opener) {
    auto file = filesystem_.open(ino_, flags & ~O_TRUNC, opener.pid);
    if (!file) throw std::runtime_error(file.error().message);
    file_ = *file;
    if ((flags & O_TRUNC) == 0) return;
    if (auto cut = filesystem_.resize_by_name(ino_, 0, opener.pid); !cut)
      throw std::runtime_error(cut.error().message);
  }
  ~Descriptor() { release(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  Result<Stale> write(std::string_view bytes, std::uint64_t offset) {
    return write(bytes, offset, process_.owner);
  }
  Result<Stale> write(std::string_view bytes, std::uint64_t offset, Caller caller) {
    return filesystem_.write(*file_, bytes_of(bytes), offset, caller);
  }
  Result<void> resize(std::uint64_t size_bytes) {
    return filesystem_.resize(*file_, size_bytes, process_.owner);
  }
  Result<Stale> sync() { return filesystem_.sync(*file_); }
  /// One of several closes, of a copy of the file descriptor. Another process may make it.
  Result<Stale> flush() { return flush(process_); }
  Result<Stale> flush(Process closer) { return filesystem_.flush(*file_, closer.owner, closer.pid); }
  /// Ends the last file descriptor without a close.
  Stale release() {
    if (file_ == nullptr) return {};
    return filesystem_.release(std::exchange(file_, nullptr));
  }
  /// The close by the opener. Its result is the errno of the close.
  Result<Stale> close() {
    auto verdict = flush();
    release();
    return verdict;
  }

  [[nodiscard]] OpenFile& file() const { return *file_; }

 private:
  MountedModel& filesystem_;
  Ino ino_;
  Process process_;
  OpenFile* file_ = nullptr;
};

}  // namespace stfs::test
