// The operating system's files.
#include "core/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <system_error>

#include "core/unique_fd.h"

namespace stfs {
namespace {

constexpr std::uint64_t kMaxOffset = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());

FileStatus status_of(const struct stat& st) {
  return {.identity = {.device = st.st_dev,
                       .inode = st.st_ino,
                       .size_bytes = static_cast<std::uint64_t>(st.st_size),
                       .mtime_ns = st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec},
          .mode = st.st_mode,
          .uid = st.st_uid,
          .gid = st.st_gid};
}

class SystemFile final : public File {
 public:
  SystemFile(UniqueFd fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {}

  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override {
    while (!to.empty()) {
      if (offset > kMaxOffset) return fail_system(EINVAL, name_, "read");
      const ssize_t got = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fail_system(errno, name_, "read");
      if (got == 0) {
        return fail(ErrorCode::ArchiveCut, EIO,
                    name_ + ": the file ends at byte " + std::to_string(offset) + ", " +
                        std::to_string(to.size()) + " bytes early");
      }
      to = to.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return {};
  }

  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override {
    while (!from.empty()) {
      if (offset > kMaxOffset) return fail_system(EFBIG, name_, "write");
      const ssize_t put = ::pwrite(fd_.get(), from.data(), from.size(), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return fail_system(errno, name_, "write");
      from = from.subspan(static_cast<std::size_t>(put));
      offset += static_cast<std::uint64_t>(put);
    }
    return {};
  }

  Result<void> reserve(ByteRange range) override {
    if (range.empty()) return {};
    while (::fallocate(fd_.get(), 0, static_cast<off_t>(range.offset), static_cast<off_t>(range.size_bytes)) <
           0) {
      if (errno == EINTR) continue;
      if (errno == EOPNOTSUPP || errno == ENOSYS) return {};
      return fail_system(errno, name_, "reserve space");
    }
    return {};
  }

  Result<void> sync() override {
    if (::fdatasync(fd_.get()) < 0) return fail_system(errno, name_, "sync");
    return {};
  }

  Result<FileStatus> status() const override {
    struct stat st {};
    if (::fstat(fd_.get(), &st) < 0) return fail_system(errno, name_, "stat");
    return status_of(st);
  }

  int descriptor() const override { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::string name_;
};

Result<void> refuse_what_is_no_file(const std::filesystem::path& path, std::uint32_t mode) {
  const std::string name = path.string();
  if (S_ISREG(mode)) return {};
  if (S_ISDIR(mode)) return fail(ErrorCode::System, EISDIR, name + ": is a directory, not an archive");
  return fail(ErrorCode::System, EINVAL, name + ": is not a regular file");
}

class SystemStorage final : public Storage {
 public:
  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override {
    // O_NONBLOCK: a named pipe that nobody writes to must be refused below, not waited for.
    const int flags = (access == Access::ReadOnly ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK;
    UniqueFd fd(::open(path.c_str(), flags));
    if (!fd) {
      const int why = errno;
      // open(2) says EISDIR only to writers.
      struct stat st {};
      if (::stat(path.c_str(), &st) == 0) {
        if (auto regular = refuse_what_is_no_file(path, st.st_mode); !regular) {
          return pass_on(std::move(regular));
        }
      }
      return fail_system(why, path.string(), "open");
    }
    auto file = std::make_unique<SystemFile>(std::move(fd), path.string());
    auto status = file->status();
    if (!status) return pass_on(std::move(status));
    if (auto regular = refuse_what_is_no_file(path, status->mode); !regular)
      return pass_on(std::move(regular));
    return file;
  }

  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& directory) override {
    constexpr mode_t kOwnerOnly = 0600;
    const std::string name = directory.string() + ": staging file";
    if (UniqueFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnerOnly)); fd) {
      return std::make_unique<SystemFile>(std::move(fd), name);
    }
    // Some network and FUSE stores have no O_TMPFILE: a name that lives for an instant serves as well.
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL) {
      return fail_system(errno, name, "create");
    }
    std::string pattern = (directory / ".stfs-staging-XXXXXX").string();
    UniqueFd fd(::mkostemp(pattern.data(), O_CLOEXEC));
    if (!fd) return fail_system(errno, name, "create");
    if (::unlink(pattern.c_str()) < 0) return fail_system(errno, pattern, "unlink");
    return std::make_unique<SystemFile>(std::move(fd), name);
  }

  Result<FileStatus> status(const std::filesystem::path& path) override {
    struct stat st {};
    if (::stat(path.c_str(), &st) < 0) return fail_system(errno, path.string(), "stat");
    return status_of(st);
  }
};

}  // namespace

Storage& system_storage() {
  static SystemStorage storage;
  return storage;
}

}  // namespace stfs
