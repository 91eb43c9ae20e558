// A path may also leave the mount point again by a link: each directory on its way counts.
#include "fs/mount/hidden_source.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "core/base/absolute_path.h"
#include "core/storage/trusted_links.h"

namespace stfs {

Result<void> check_not_hidden(std::span<const std::filesystem::path> paths, const MountPoint& mount_point) {
  struct stat directory {};
  if (::fstat(mount_point.directory.get(), &directory) != 0)
    return fail_system(errno, mount_point.path.string(), "use as mount point");
  for (const std::filesystem::path& path : paths) {
    const auto absolute = absolute_path(path);
    RETURN_IF_ERROR(absolute);
    if (is_url(path) || !passes_directory(absolute->string(), directory)) continue;
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: its path leads through the mount point {}, and a mount there would hide it: "
                            "choose a mount point without files of the source, for example an empty "
                            "directory beside them",
                            absolute->string(), mount_point.path.string()));
  }
  return {};
}

std::vector<std::filesystem::path> files_of(const Source& source) {
  std::vector<std::filesystem::path> files{source.path};
  for (const Source::Member& member : source.members) {
    files.push_back(member.path);
    if (!member.model) continue;
    files.push_back(member.model->path());
    for (const Shard& shard : member.model->shards()) files.push_back(shard.path);
  }
  return files;
}

}  // namespace stfs
