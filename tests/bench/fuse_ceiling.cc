// fuse_ceiling SIZE THREADS MOUNTPOINT [rw]: the fastest possible FUSE server, to which the benchmarks
// compare the driver. The server has one file, `data`, of SIZE bytes. Every read is answered at once from a
// buffer that is always in memory. With rw every write is also answered at once, and its bytes are dropped.
// The session has the driver's options (fs/kernel/fuse_ops.cc, on_init). The server runs in the foreground
// until it is unmounted. Only measurements use it.
#define FUSE_USE_VERSION 312

#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr fuse_ino_t kRoot = FUSE_ROOT_ID;
constexpr fuse_ino_t kData = 2;
constexpr double kForeverSeconds = 1e9;
constexpr std::size_t kLargestRequestBytes = std::size_t{1} << 20;

struct Ceiling {
  std::uint64_t size_bytes = 0;
  std::vector<char> buffer;
};

Ceiling& ceiling_of(fuse_req_t req) {
  return *static_cast<Ceiling*>(fuse_req_userdata(req));
}

struct stat stat_of(const Ceiling& ceiling, fuse_ino_t ino) {
  struct stat st {};
  st.st_ino = ino;
  st.st_mode = ino == kRoot ? S_IFDIR | 0755 : S_IFREG | 0644;
  st.st_nlink = ino == kRoot ? 2 : 1;
  st.st_size = ino == kRoot ? 0 : static_cast<off_t>(ceiling.size_bytes);
  return st;
}

void on_init(void*, fuse_conn_info* conn) {
  conn->want |=
      conn->capable & (FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_EXPLICIT_INVAL_DATA);
  conn->want &= ~static_cast<unsigned>(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                                       FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_WRITEBACK_CACHE);
  conn->max_background = 64;
  conn->congestion_threshold = 48;
}

void on_lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  if (parent != kRoot || std::strcmp(name, "data") != 0) {
    fuse_reply_err(req, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = kData;
  entry.attr = stat_of(ceiling_of(req), kData);
  entry.attr_timeout = kForeverSeconds;
  entry.entry_timeout = kForeverSeconds;
  fuse_reply_entry(req, &entry);
}

void on_getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info*) {
  const struct stat st = stat_of(ceiling_of(req), ino);
  fuse_reply_attr(req, &st, kForeverSeconds);
}

void on_open(fuse_req_t req, fuse_ino_t, fuse_file_info* fi) {
  fi->keep_cache = 1;
  fi->direct_io = (fi->flags & O_ACCMODE) == O_WRONLY ? 1 : 0;
  fuse_reply_open(req, fi);
}

void on_read(fuse_req_t req, fuse_ino_t, std::size_t size, off_t offset, fuse_file_info*) {
  const Ceiling& ceiling = ceiling_of(req);
  const auto at = static_cast<std::uint64_t>(offset);
  const std::uint64_t left = at < ceiling.size_bytes ? ceiling.size_bytes - at : 0;
  fuse_reply_buf(req, ceiling.buffer.data(), std::min<std::uint64_t>({size, left, ceiling.buffer.size()}));
}

void on_write(fuse_req_t req, fuse_ino_t, const char*, std::size_t size, off_t, fuse_file_info*) {
  fuse_reply_write(req, size);
}

void on_fsync(fuse_req_t req, fuse_ino_t, int, fuse_file_info*) {
  fuse_reply_err(req, 0);
}

void on_getxattr(fuse_req_t req, fuse_ino_t, const char*, std::size_t) {
  fuse_reply_err(req, ENODATA);
}

const fuse_lowlevel_ops kOperations = [] {
  fuse_lowlevel_ops ops{};
  ops.init = on_init;
  ops.lookup = on_lookup;
  ops.getattr = on_getattr;
  ops.open = on_open;
  ops.read = on_read;
  ops.write = on_write;
  ops.fsync = on_fsync;
  ops.getxattr = on_getxattr;
  return ops;
}();

int serve(Ceiling& ceiling, unsigned threads, const char* mount_point, const std::string& access) {
  std::vector<std::string> words{"fuse_ceiling", "-o",
                                 access + ",nosuid,nodev,fsname=ceiling,subtype=ceiling"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  fuse_args arguments = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());
  fuse_session* session = fuse_session_new(&arguments, &kOperations, sizeof kOperations, &ceiling);
  fuse_opt_free_args(&arguments);
  if (session == nullptr) return 1;
  int ended = 1;
  if (fuse_set_signal_handlers(session) == 0 && fuse_session_mount(session, mount_point) == 0) {
    fuse_loop_config* config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(config, threads);
    fuse_loop_cfg_set_idle_threads(config, threads);
    ended = fuse_session_loop_mt(session, config) < 0 ? 1 : 0;
    fuse_loop_cfg_destroy(config);
    fuse_session_unmount(session);
    fuse_remove_signal_handlers(session);
  }
  fuse_session_destroy(session);
  return ended;
}

}  // namespace

int main(int argc, char** argv) {
  const bool may_write = argc == 5 && std::strcmp(argv[4], "rw") == 0;
  if (argc != 4 && !may_write) {
    std::fprintf(stderr, "usage: fuse_ceiling SIZE_BYTES THREADS MOUNTPOINT [rw]\n");
    return 2;
  }
  Ceiling ceiling;
  ceiling.size_bytes = std::strtoull(argv[1], nullptr, 10);
  ceiling.buffer.resize(kLargestRequestBytes);
  std::mt19937_64 random(1);
  for (char& byte : ceiling.buffer) byte = static_cast<char>(random());
  return serve(ceiling, static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10)), argv[3],
               may_write ? "rw" : "ro");
}
