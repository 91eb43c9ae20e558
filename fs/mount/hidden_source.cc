// Follows each path one name at a time, because a path may leave the mount point again by a link.
#include "fs/mount/hidden_source.h"

#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <string>

#include "core/base/absolute_path.h"
#include "core/storage/trusted_links.h"

namespace stfs {
namespace {

/// Compares directories by device and inode number, which links and bind mounts share.
class WayThrough {
 public:
  explicit WayThrough(const struct stat& directory) : directory_(directory) {}

  /// True if a look-up of the path passes the directory.
  /// @param is_named  true if the user has named the path; false for the target of a link.
  bool leads(const std::filesystem::path& path, bool is_named = true) {
    std::filesystem::path walked;
    for (const std::filesystem::path& name : path) {
      walked /= name;
      // A path that was checked earlier did not lead through, or is a loop of links.
      if (!seen_.insert(walked.string()).second) continue;
      const auto there = follow_all_links(walked);
      if (there && there->status.st_dev == directory_.st_dev && there->status.st_ino == directory_.st_ino)
        return true;
      const bool is_foreign = !there && there.error().errno_value == EXDEV;
      if (is_foreign && !is_named) return false;
      // The function of the standard library would ask for the status first.
      std::string target(PATH_MAX, '\0');
      const ssize_t length = ::readlink(walked.c_str(), target.data(), target.size());
      if (length <= 0) continue;
      target.resize(static_cast<std::size_t>(length));
      if (leads(walked.parent_path() / target, false)) return true;
    }
    return false;
  }

 private:
  const struct stat directory_;
  std::set<std::string> seen_;
};

}  // namespace

Result<void> check_not_hidden(std::span<const std::filesystem::path> paths,
                              const std::filesystem::path& mount_point) {
  struct stat directory {};
  if (::stat(mount_point.c_str(), &directory) != 0)
    return fail_system(errno, mount_point.string(), "use as mount point");
  WayThrough way(directory);
  for (const std::filesystem::path& path : paths) {
    const auto absolute = absolute_path(path);
    RETURN_IF_ERROR(absolute);
    if (!way.leads(*absolute)) continue;
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: its path leads through the mount point {}, and a mount there would hide it: "
                            "choose a mount point without files of the source, for example an empty "
                            "directory beside them",
                            absolute->string(), mount_point.string()));
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
