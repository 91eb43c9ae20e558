#include "core/storage/made_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <optional>

namespace stfs {
namespace {

constexpr const char* kMark = "user.safetensors.made";

std::optional<std::string> mark_for(int directory, int above, const std::string& name) {
  struct statx own {};
  struct stat holding {};
  if (::statx(directory, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &own) != 0 ||
      ::fstat(above, &holding) != 0)
    return std::nullopt;
  const bool has_birth = (own.stx_mask & STATX_BTIME) != 0;
  return fmt::format("{} {}.{:09} {} {}", own.stx_ino, has_birth ? own.stx_btime.tv_sec : 0,
                     has_birth ? own.stx_btime.tv_nsec : 0, holding.st_ino, name);
}

}  // namespace

void mark_made_directory(int directory, int above, const std::string& name) {
  const auto mark = mark_for(directory, above, name);
  if (mark) static_cast<void>(::fsetxattr(directory, kMark, mark->data(), mark->size(), 0));
}

MadeMark made_mark_of(int directory, int above, const std::string& name) {
  constexpr std::size_t kMostBytes = 512;  // a name has at most 255
  std::string found(kMostBytes, '\0');
  const ssize_t size = ::fgetxattr(directory, kMark, found.data(), found.size());
  if (size < 0) return errno == ENOTSUP || errno == ENOSYS ? MadeMark::Unsupported : MadeMark::Missing;
  found.resize(static_cast<std::size_t>(size));
  return found == mark_for(directory, above, name) ? MadeMark::Valid : MadeMark::Missing;
}

}  // namespace stfs
