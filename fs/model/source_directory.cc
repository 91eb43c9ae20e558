#include "fs/model/source_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/shell_word.h"
#include "core/model/scratch_directory.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/trusted_links.h"
#include "fs/base/log.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

constexpr mode_t kPermissionBits = 0777;

/// Logs the scratch files of models that were deleted.
void log_left_scratch_files(const std::filesystem::path& directory) {
  std::error_code failed;
  std::filesystem::directory_iterator at(directory, failed);
  for (; !failed && at != std::filesystem::directory_iterator(); at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (!is_scratch_directory_name(name)) continue;
    const std::string model = std::filesystem::path(name.substr(1)).stem().string();
    const auto there = is_archive_name(model) ? system_storage().status_of_name(directory / model)
                                              : Result<FileStatus>(FileStatus{});
    if (there || there.error().errno_value != ENOENT) continue;
    log::info("{}: there is no such model, but its scratch files: `rm -r {}` deletes them",
              (directory / model).string(), shell_word(at->path().native()));
  }
}

}  // namespace

SourceDirectory::SourceDirectory(const std::filesystem::path& path, const MountedModelOptions& options)
    : path_(path),
      options_(options),
      tree_(path, {}, [this](std::string_view name) { return name == kViewsDirectory || is_model_(name); }),
      files_(tree_, options_, {}) {
  log_left_scratch_files(path_);
}

Result<std::optional<struct stat>> SourceDirectory::status() const {
  const auto found = tree_.files().find("");
  const int why = found ? 0 : found.error().errno_value;
  if (why == EMFILE || why == ENFILE) return tl::unexpected(found.error());
  if (!found) return std::optional<Stat>();
  Stat st = found->entry.status;
  st.st_mode = (st.st_mode & ~kPermissionBits) | found->entry.permissions.mode;
  st.st_mode &= ~options_.umask;
  st.st_uid = options_.uid.value_or(st.st_uid);
  st.st_gid = options_.gid.value_or(st.st_gid);
  return st;
}

std::optional<struct stat> SourceDirectory::status_of(const std::string& name) const {
  Stat st{};
  const auto named = open_entry(descriptor(), name, O_PATH, name);
  if (!named || ::fstat(named->get(), &st) != 0) return std::nullopt;
  return st;
}

std::filesystem::path SourceDirectory::path_of(Ino ino) const {
  const auto below = tree_.path_of(node(ino).ino);
  return below && !below->empty() ? path_ / *below : path_;
}

mode_t SourceDirectory::file_type(Ino ino) const {
  return node(ino).is_directory() ? S_IFDIR : S_IFREG;
}

void SourceDirectory::list(Ino directory, std::uint64_t position, const Directory::VisitEntry& visit) const {
  tree_.list(directory, position, [&](std::string_view name, Ino ino, std::uint64_t next) {
    return visit(name, ino == SourceTree::kDirectory ? kRootIno : ino, next);
  });
}

void SourceDirectory::list_root(std::uint64_t position, const Directory::VisitEntry& visit) const {
  tree_.list_names(SourceTree::kDirectory, position, [&](std::string_view name, Ino ino, std::uint64_t next) {
    return is_archive_name(name) || visit(name, ino, next);
  });
}

Result<void> SourceDirectory::check_archive(std::string_view name, const FileIdentity& archive) const {
  const auto opened = follow_trusted_links(descriptor(), std::string(name));
  if (!opened) return fail_system(opened.error().errno_value, (path_ / name).string(), "open");
  const auto there = system_storage().status(fmt::format("/proc/self/fd/{}", opened->fd.get()));
  if (there && there->identity.same_file(archive)) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              (path_ / name).string() + ": is another file than the one that the mount shows");
}

Result<void> SourceDirectory::check_place() const {
  Stat ours{};
  if (::fstat(descriptor(), &ours) != 0) return fail_system(errno, path_.string(), "stat");
  const auto there = follow_trusted_links(AT_FDCWD, path_ / "");
  // Another user's mount is never entered, and is always another directory.
  if (!there && there.error().errno_value != EXDEV) return tl::unexpected(there.error());
  if (there && there->status.st_dev == ours.st_dev && there->status.st_ino == ours.st_ino) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              path_.string() +
                  ": is another directory than the one that is mounted: until that one is back at its path, "
                  "no model is opened: unmount and mount again to see the new one");
}

Result<ModelDirectory> SourceDirectory::list_models() const {
  // Another user may have given path() to another directory.
  return list_model_directory(fmt::format("/proc/self/fd/{}", descriptor()));
}

}  // namespace stfs
