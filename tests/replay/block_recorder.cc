// A FUSE file system with one file, "disk.img", that records what is written to it. Reads and writes go to a
// real file below. The log gets every write and every flush in the order in which the kernel sends them; any
// prefix of the log is a state that a power cut can leave.
//
// Entries of the log, little-endian: u8 kind ('W' or 'F'), u64 offset, u32 size, then the bytes of a write.
// Direct I/O keeps the page cache from holding writes back. One thread serves, so the log has one order.
#define FUSE_USE_VERSION 310
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"

namespace {

using stfs::UniqueFd;

constexpr fuse_ino_t kDisk = 2;
constexpr std::string_view kDiskName = "disk.img";

class Recorder {
 public:
  Recorder(const char* disk, const char* log, const char* position)
      : disk_(::open(disk, O_RDWR | O_CLOEXEC)),
        log_(::open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)),
        position_(::open(position, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
    if (!disk_ || !log_ || !position_ || ::ftruncate(position_.get(), sizeof(std::uint64_t)) < 0) return;
    void* const mapped =
        ::mmap(nullptr, sizeof(std::uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, position_.get(), 0);
    if (mapped != MAP_FAILED) entries_ = static_cast<std::uint64_t*>(mapped);
  }

  [[nodiscard]] bool is_ready() const { return entries_ != nullptr; }
  [[nodiscard]] int disk_fd() const { return disk_.get(); }

  int write(const char* from, std::size_t size_bytes, off_t offset) {
    if (::pwrite(disk_.get(), from, size_bytes, offset) != static_cast<ssize_t>(size_bytes)) return EIO;
    return append('W', static_cast<std::uint64_t>(offset), {from, size_bytes});
  }
  int flush() { return append('F', 0, {}); }

 private:
  int append(char kind, std::uint64_t offset, std::string_view bytes) {
    const auto size_bytes = static_cast<std::uint32_t>(bytes.size());
    std::array<char, 1 + sizeof offset + sizeof size_bytes> head{};
    head[0] = kind;
    std::memcpy(&head[1], &offset, sizeof offset);
    std::memcpy(&head[1 + sizeof offset], &size_bytes, sizeof size_bytes);
    for (const std::string_view part : {std::string_view(head.data(), head.size()), bytes}) {
      if (::write(log_.get(), part.data(), part.size()) != static_cast<ssize_t>(part.size())) return EIO;
    }
    std::atomic_ref(*entries_).fetch_add(1);
    return 0;
  }

  UniqueFd disk_;
  UniqueFd log_;
  UniqueFd position_;
  std::uint64_t* entries_ = nullptr;  // the number of entries, in a file that other programs read
};

Recorder& recorder(fuse_req_t req) {
  return *static_cast<Recorder*>(fuse_req_userdata(req));
}

struct stat attributes(const Recorder& disk, fuse_ino_t ino) {
  struct stat st {};
  if (ino == kDisk) ::fstat(disk.disk_fd(), &st);
  st.st_ino = ino;
  st.st_mode = ino == kDisk ? S_IFREG | 0600 : S_IFDIR | 0700;
  st.st_nlink = 1;
  return st;
}

void lookup(fuse_req_t req, fuse_ino_t /*parent*/, const char* name) {
  if (name != kDiskName) {
    fuse_reply_err(req, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = kDisk;
  entry.attr = attributes(recorder(req), kDisk);
  fuse_reply_entry(req, &entry);
}

void getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info* /*file*/) {
  const struct stat st = attributes(recorder(req), ino);
  fuse_reply_attr(req, &st, 1.0);
}

void open(fuse_req_t req, fuse_ino_t /*ino*/, fuse_file_info* file) {
  file->direct_io = 1;
  fuse_reply_open(req, file);
}

void read(fuse_req_t req, fuse_ino_t /*ino*/, std::size_t size_bytes, off_t offset,
          fuse_file_info* /*file*/) {
  std::vector<char> buffer(size_bytes);
  const ssize_t got = ::pread(recorder(req).disk_fd(), buffer.data(), size_bytes, offset);
  if (got < 0) {
    fuse_reply_err(req, errno);
  } else {
    fuse_reply_buf(req, buffer.data(), static_cast<std::size_t>(got));
  }
}

void write(fuse_req_t req, fuse_ino_t /*ino*/, const char* from, std::size_t size_bytes, off_t offset,
           fuse_file_info* /*file*/) {
  if (const int failure = recorder(req).write(from, size_bytes, offset); failure != 0) {
    fuse_reply_err(req, failure);
  } else {
    fuse_reply_write(req, size_bytes);
  }
}

void fsync(fuse_req_t req, fuse_ino_t /*ino*/, int /*data_only*/, fuse_file_info* /*file*/) {
  fuse_reply_err(req, recorder(req).flush());
}

/// Serves in this thread until the mount ends or a signal comes.
int serve(Recorder& disk, const char* program, const char* mount_point) {
  fuse_lowlevel_ops operations{};
  operations.lookup = lookup;
  operations.getattr = getattr;
  operations.open = open;
  operations.read = read;
  operations.write = write;
  operations.fsync = fsync;
  std::string name = program;
  std::array<char*, 1> arguments = {name.data()};
  fuse_args args = FUSE_ARGS_INIT(static_cast<int>(arguments.size()), arguments.data());
  fuse_session* const session = fuse_session_new(&args, &operations, sizeof operations, &disk);
  if (session == nullptr) return 1;
  int status = 1;
  if (fuse_set_signal_handlers(session) == 0 && fuse_session_mount(session, mount_point) == 0) {
    status = fuse_session_loop(session) < 0 ? 1 : 0;
    fuse_session_unmount(session);
  }
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  fuse_opt_free_args(&args);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "Usage: block_recorder DISK LOG POSITION MOUNTPOINT\n";
    return 2;
  }
  Recorder disk(argv[1], argv[2], argv[3]);
  if (!disk.is_ready()) {
    std::cerr << "block_recorder: " << std::strerror(errno) << "\n";
    return 1;
  }
  return serve(disk, argv[0], argv[4]);
}
