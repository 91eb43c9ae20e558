#include "core/remote/cache_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "core/storage/mount_record.h"
#include "core/storage/new_file.h"

namespace stfs {

namespace fs = std::filesystem;

std::optional<fs::path> cache_directory() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return fs::path(text == nullptr ? "" : text);
  };
  fs::path above = value("XDG_CACHE_HOME");
  if (!above.is_absolute()) above = value("HOME") / ".cache";
  if (!above.is_absolute()) return std::nullopt;
  std::error_code failed;
  fs::create_directories(above, failed);
  return fs::is_directory(above, failed) ? std::optional(std::move(above)) : std::nullopt;
}

Result<UniqueFd> open_own_cache(const fs::path& path) {
  constexpr int kOpen = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  const auto above = cache_directory();
  if (!above) return fail_system(ENOENT, "the cache", "find $XDG_CACHE_HOME or ~/.cache");
  UniqueFd directory(::open(above->c_str(), kOpen));
  if (!directory) return fail_system(errno, above->native(), "open");
  fs::path reached = *above;
  for (const fs::path& part : "safetensorsfs" / path) {
    reached /= part;
    if (::mkdirat(directory.get(), part.c_str(), S_IRWXU) != 0 && errno != EEXIST)
      return fail_system(errno, reached.native(), "make");
    UniqueFd next(::openat(directory.get(), part.c_str(), kOpen | O_NOFOLLOW));
    struct stat status {};
    if (!next || ::fstat(next.get(), &status) != 0) return fail_system(errno, reached.native(), "open");
    if (owner_of(next.get(), status.st_uid) != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
      return fail(
          ErrorCode::System, EPERM,
          fmt::format("{}: another user may have made it or may write it: remove it", reached.native()));
    }
    directory = std::move(next);
  }
  return directory;
}

Result<void> put_in_cache(int directory, const std::string& name, const MakePieces& make, mode_t mode,
                          KeepsFree keeps_free) {
  constexpr std::uint64_t kFreeShare = 20;
  struct statvfs disk {};
  if (keeps_free == KeepsFree::Yes && ::fstatvfs(directory, &disk) == 0 &&
      disk.f_bavail < disk.f_blocks / kFreeShare)
    return fail_system(ENOSPC, name, "keep it in the cache, whose disk is nearly full");
  const std::string temporary = new_temporary_file_name();
  const UniqueFd file(::openat(directory, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file) return fail_system(errno, name, "make");
  const TakePiece write = [&](std::span<const std::byte> bytes) -> Result<void> {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return fail_system(written < 0 ? errno : EIO, name, "write");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return {};
  };
  const auto fill = [&]() -> Result<void> {
    if (::fchmod(file.get(), mode) != 0) return fail_system(errno, name, "set its mode");
    RETURN_IF_ERROR(make(write));
    if (::renameat(directory, temporary.c_str(), directory, name.c_str()) != 0)
      return fail_system(errno, name, "rename");
    return {};
  };
  auto done = fill();
  if (!done) ::unlinkat(directory, temporary.c_str(), 0);
  return done;
}

Result<void> put_in_cache(int directory, const std::string& name, std::span<const std::byte> bytes,
                          mode_t mode, KeepsFree keeps_free) {
  return put_in_cache(
      directory, name, [&](const TakePiece& take) { return take(bytes); }, mode, keeps_free);
}

}  // namespace stfs
