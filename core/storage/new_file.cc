// Makes a new file in these steps: temporary file, bytes, sync, rename, sync of the directory.
//
// Only the rename changes what the path names. Everything that it makes visible is on stable storage before.
#include "core/storage/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "core/storage/attribute_names.h"
#include "core/storage/disk_space.h"
#include "core/storage/file_attributes.h"

namespace stfs {
namespace {

// Small pieces are collected before they are written: a million tensors do not need a million system calls.
constexpr std::size_t kGatheredBytes = 256 * 1024;
constexpr std::string_view kTemporaryPrefix = ".stfs-";
constexpr std::string_view kTemporarySuffix = ".tmp";

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

// Checks whether a file may take the place of what is at the path. True if it replaces a regular file.
Result<bool> check_target(const std::filesystem::path& path, bool replace) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return false;
    return fail_system(errno, path.native(), "create");
  }
  if (!replace) return fail_system(EEXIST, path.native(), "create");
  if (::stat(path.c_str(), &status) != 0) return false;  // a dangling link
  if (S_ISDIR(status.st_mode)) return fail_system(EISDIR, path.native(), "replace");
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: replace: not a regular file", path.native()));
  }
  return true;
}

// Whether a directory lies in a mount of this program: its root, or one above on the same file system, tells.
bool is_in_mount(const std::filesystem::path& directory) {
  std::error_code unknown;
  std::filesystem::path at = std::filesystem::weakly_canonical(directory, unknown);
  struct stat first {};
  if (unknown || ::stat(at.c_str(), &first) != 0) return false;
  for (struct stat status = first; status.st_dev == first.st_dev; at = at.parent_path()) {
    if (::getxattr(at.c_str(), kArchiveAttribute, nullptr, 0) >= 0) return true;
    if (!at.has_relative_path() || ::stat(at.parent_path().c_str(), &status) != 0) return false;
  }
  return false;
}

// Creates a temporary file beside the path. Its name is short, because the path's own name may already have
// the greatest length. It does not end in .safetensors, so that nobody takes it for an archive.
Result<UniqueFd> create_temporary(const std::filesystem::path& path, mode_t mode,
                                  std::filesystem::path& temporary) {
  // There it would become a tensor.
  if (is_in_mount(directory_of(path))) {
    return fail(ErrorCode::System, EPERM,
                path.native() + ": a mount of tensors holds no new files: name a place outside of the mount");
  }
  constexpr int kAttempts = 1000;  // other processes may use names here, and killed ones have left theirs
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    temporary = directory_of(path) / new_temporary_file_name();
    UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (file) return file;
    if (errno != EEXIST) break;
  }
  return fail_system(errno, path.native(), "create a temporary file beside it");
}

Result<void> write_all_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset,
                          const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail_system(errno, path.native(), "write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

Result<void> write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail_system(errno, path.native(), "write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

// Preallocates, so that a full disk fails before the caller has produced a byte. File systems that can't
// preallocate return EOPNOTSUPP; there a write reports the full disk.
Result<void> reserve(int fd, std::uint64_t size_bytes, const std::filesystem::path& path) {
  const int why = reserve_space(fd, {0, size_bytes}, GrowsFile::Yes);
  if (why == 0 || why == EOPNOTSUPP) return {};
  return fail_system(why, path.native(), fmt::format("reserve {} bytes", size_bytes));
}

// rename(2). If `replace` is false, it never takes an existing file's name.
int rename_file(const std::filesystem::path& from, const std::filesystem::path& to, bool replace) {
  if (replace) return ::rename(from.c_str(), to.c_str());
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return -1;
  // Some network file systems do not know the flag. link(2) refuses an existing name on all of them.
  if (::link(from.c_str(), to.c_str()) != 0) return -1;
  ::unlink(from.c_str());
  return 0;
}

Result<void> sync_directory(const std::filesystem::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return fail_system(errno, directory.native(), "sync the directory");
  return {};
}

}  // namespace

bool is_temporary_file_name(std::string_view file_name) {
  return file_name.starts_with(kTemporaryPrefix) && file_name.ends_with(kTemporarySuffix);
}

std::string new_temporary_file_name() {
  static std::atomic<unsigned> number = 0;
  return fmt::format("{}{}-{}{}", kTemporaryPrefix, ::getpid(), number++, kTemporarySuffix);
}

Result<NewFile> NewFile::create(const std::filesystem::path& path, bool replace, mode_t mode) {
  NewFile file;
  file.path_ = path;
  file.replace_ = replace;
  const Result<bool> replaces = check_target(path, replace);
  if (!replaces) return tl::unexpected(replaces.error());
  // Nobody else may open the file before it has the mode of the file that it replaces.
  std::filesystem::path temporary;
  Result<UniqueFd> fd = create_temporary(path, *replaces ? 0600 : mode, temporary);
  if (!fd) return pass_on(std::move(fd));
  file.temporary_.reset(new std::filesystem::path(std::move(temporary)));
  file.file_ = std::move(*fd);
  file.gathered_.reserve(kGatheredBytes);
  return file;
}

Result<NewFile> NewFile::create_as(const std::filesystem::path& temporary, const std::filesystem::path& path,
                                   mode_t mode) {
  const Result<bool> replaces = check_target(path, true);
  if (!replaces) return tl::unexpected(replaces.error());
  ::unlink(temporary.c_str());  // a failure is that of open()
  NewFile file;
  file.path_ = path;
  file.replace_ = true;
  if (*replaces) mode = 0600;
  file.file_ = UniqueFd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file.file_) return fail_system(errno, temporary.native(), "create");
  file.temporary_.reset(new std::filesystem::path(temporary));
  file.gathered_.reserve(kGatheredBytes);
  return file;
}

NewFile::~NewFile() = default;

void NewFile::Remove::operator()(std::filesystem::path* path) const {
  ::unlink(path->c_str());
  delete path;
}

void NewFile::discard() {
  temporary_.reset();
  UniqueFd closed = std::move(file_);
}

Result<void> NewFile::reserve(std::uint64_t size_bytes) {
  if (!file_) return fail_system(EBADF, path_.native(), "reserve");
  auto ok = stfs::reserve(file_.get(), size_bytes, path_);
  if (!ok) discard();
  reserved_bytes_ = std::max(reserved_bytes_, size_bytes);
  return ok;
}

Result<void> NewFile::append(std::span<const std::byte> bytes) {
  if (!file_) return fail_system(EBADF, path_.native(), "append to a file that is closed");
  auto ok = write(bytes);
  if (!ok) discard();
  appended_bytes_ += bytes.size();
  return ok;
}

Result<void> NewFile::overwrite(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!file_) return fail_system(EBADF, path_.native(), "write to a file that is closed");
  if (offset > appended_bytes_ || bytes.size() > appended_bytes_ - offset) {
    return fail_system(EINVAL, path_.native(), "replace bytes behind the end");
  }
  auto ok = write_gathered();
  if (ok) ok = write_all_at(file_.get(), bytes, offset, path_);
  if (!ok) discard();
  return ok;
}

Result<void> NewFile::cut(std::uint64_t size_bytes) {
  if (!file_) return fail_system(EBADF, path_.native(), "cut a file that is closed");
  if (size_bytes > appended_bytes_) return fail_system(EINVAL, path_.native(), "cut behind the end");
  auto ok = write_gathered();
  const auto end = static_cast<off_t>(size_bytes);
  if (ok && (::ftruncate(file_.get(), end) != 0 || ::lseek(file_.get(), end, SEEK_SET) < 0))
    ok = fail_system(errno, path_.native(), "cut");
  if (!ok) discard();
  appended_bytes_ = size_bytes;
  return ok;
}

Result<void> NewFile::write(std::span<const std::byte> bytes) {
  if (gathered_.size() + bytes.size() > kGatheredBytes) {
    if (auto ok = write_gathered(); !ok) return ok;
    if (bytes.size() >= kGatheredBytes) return write_all(file_.get(), bytes, path_);
  }
  gathered_.insert(gathered_.end(), bytes.begin(), bytes.end());
  return {};
}

Result<void> NewFile::write_gathered() {
  auto ok = write_all(file_.get(), gathered_, path_);
  gathered_.clear();
  return ok;
}

Result<void> NewFile::settle() {
  if (!file_) return fail_system(EBADF, path_.native(), "settle a file that is closed");
  auto ok = complete(Durability::Power);
  if (!ok) discard();
  return ok;
}

Result<void> NewFile::complete(Durability durability) {
  if (auto ok = write_gathered(); !ok) return ok;
  gathered_ = {};  // a caller may keep thousands of settled files
  if (reserved_bytes_ > appended_bytes_ &&
      ::ftruncate(file_.get(), static_cast<off_t>(appended_bytes_)) != 0) {
    return fail_system(errno, path_.native(), "give back reserved space");
  }
  if (replace_) {  // else rename_file checks for a new file atomically
    const Result<bool> replaces = check_target(path_, replace_);
    if (!replaces) return tl::unexpected(replaces.error());
    if (*replaces) {
      if (auto ok = copy_file_attributes(path_, file_.get()); !ok) return ok;
    }
  }
  if (durability == Durability::Power && ::fsync(file_.get()) != 0)
    return fail_system(errno, path_.native(), "sync");
  UniqueFd closed = std::move(file_);
  return {};
}

Result<void> NewFile::finish(Durability durability) {
  if (!temporary_) return fail_system(EBADF, path_.native(), "finish a file that is closed");
  auto ok = file_ ? complete(durability) : Result<void>{};
  if (ok) ok = rename(durability);
  if (!ok) discard();
  return ok;
}

Result<void> NewFile::finish_unsynced(const std::filesystem::path& path) {
  if (!temporary_ || file_) return fail_system(EBADF, path_.native(), "finish a file that is not settled");
  if (::rename(temporary_->c_str(), path.c_str()) != 0) {
    const int why = errno;
    discard();
    return fail_system(why, path.native(), "rename");
  }
  const std::unique_ptr<std::filesystem::path> renamed(temporary_.release());
  return {};
}

Result<void> NewFile::rename(Durability durability) {
  if (rename_file(*temporary_, path_, replace_) != 0) return fail_system(errno, path_.native(), "rename");
  // The file has its final name now: there is no temporary file to remove.
  const std::unique_ptr<std::filesystem::path> renamed(temporary_.release());
  return durability == Durability::Power ? sync_directory(directory_of(path_)) : Result<void>{};
}

}  // namespace stfs
