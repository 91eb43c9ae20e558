// std::filesystem::absolute() keeps ".", and lexically_normal() resolves ".." as if there were no links. So
// this removes "." itself.
#include "core/base/absolute_path.h"

#include <cerrno>
#include <system_error>

namespace stfs {

Result<void> check_local(const std::filesystem::path& path) {
  if (scheme_of(path).empty()) return {};
  return fail(ErrorCode::InvalidArgument, EINVAL,
              path.string() +
                  ": is an address, and this file must be on this machine: ./ before it names a local path");
}

Result<std::filesystem::path> absolute_path(const std::filesystem::path& path) {
  if (is_url(path)) return path;
  RETURN_IF_ERROR(check_local(path));
  std::error_code failed;
  const std::filesystem::path from_root = std::filesystem::absolute(path, failed);
  if (failed) return fail_system(failed.value(), path.string(), "resolve");
  std::filesystem::path tidy;
  for (const std::filesystem::path& part : from_root) {
    if (part != ".") tidy /= part;
  }
  return tidy;
}

}  // namespace stfs
