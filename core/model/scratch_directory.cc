#include "core/model/scratch_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/journal/journal_access.h"
#include "core/model/model.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/made_directory.h"
#include "core/storage/permissions.h"

namespace stfs {
namespace {

/// Returns the path of a file in an open directory. Later changes of the directory's path do not matter.
std::filesystem::path in(const OpenDirectory& directory, const std::string& name) {
  return directory.file(name);
}

/// @param descriptor  the file's descriptor; -1: not open.
ScratchDirectory::Status status_in(const struct stat& st, int descriptor) {
  constexpr std::int64_t kSecondNs = 1'000'000'000;
  return {.inode = st.st_ino,
          .size_bytes = static_cast<std::uint64_t>(st.st_size),
          .mtime_ns = st.st_mtim.tv_sec * kSecondNs + st.st_mtim.tv_nsec,
          .permissions = permissions_of(st, descriptor)};
}

/// Returns the archive's mode. If group or others may not write the archive, their bits are limited to
/// `mode`.
std::uint32_t narrowed(std::uint32_t archive_mode, std::uint32_t mode) {
  constexpr std::uint32_t kWrite = 2;
  for (const std::uint32_t shift : {3U, 0U}) {  // the group, others
    const bool may_write = (archive_mode & (kWrite << shift)) != 0;
    if (!may_write) archive_mode &= mode | ~(7U << shift);
  }
  return archive_mode;
}

}  // namespace

bool is_scratch_directory_name(std::string_view name) {
  return name.starts_with('.') && name.ends_with(".scratch");
}

ScratchDirectory::ScratchDirectory(const std::filesystem::path& model, std::shared_ptr<const File> archive,
                                   const std::filesystem::path& at, Storage& storage)
    : path_(path_of(model)), archive_(std::move(archive)), storage_(storage) {
  if (at.parent_path() == model.parent_path()) beside_ = at.filename();
  // If the shards are in another directory, only the index is in this one, and the index was just read.
  const auto above = open_folder(storage_, model.parent_path());
  if (above && (beside_.empty() || has_entry(storage_, *above, beside_, *archive_)))
    above_ = above->status.identity;
}

std::filesystem::path ScratchDirectory::path_of(const std::filesystem::path& model) {
  return model.parent_path() / fmt::format(".{}.scratch", model.filename().string());
}

tl::unexpected<Error> ScratchDirectory::failed(int errno_value, const std::string& name,
                                               std::string_view action) const {
  return fail_system(errno_value, (path_ / name).string(), action);
}

Result<OpenDirectory> ScratchDirectory::opened_above() const {
  auto above = open_folder(storage_, path_.parent_path());
  if (!above || (above_ && above->status.identity.same_file(*above_))) return above;
  // Some file systems of FUSE change the inode number of a directory that they have forgotten.
  if (!beside_.empty() && has_entry(storage_, *above, beside_, *archive_)) return above;
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              path_.parent_path().string() + ": is another directory than the one of the archive");
}

Result<OpenDirectory> ScratchDirectory::opened() const {
  const auto above = opened_above();
  return above ? opened_in(*above) : tl::unexpected(above.error());
}

Result<OpenDirectory> ScratchDirectory::opened_in(const OpenDirectory& above) const {
  auto directory = open_directory(storage_, above.file(path_.filename()));
  if (!directory && directory.error().errno_value == ENOTDIR) {
    return fail(ErrorCode::System, EACCES,
                path_.string() + ": is a link or a file, and new files need a directory there: remove it");
  }
  if (!directory) return tl::unexpected(above.with_shown_paths(directory.error(), path_.parent_path()));
  const auto archive = strict_status_of(*archive_);
  RETURN_IF_ERROR(archive);
  const auto doubt = why_not_believed(storage_, directory->status, directory->fd.get(), *archive);
  if (doubt) {
    return fail(ErrorCode::System, EACCES,
                fmt::format("{}: {}: new files need a directory of a user who may: remove it", path_.string(),
                            doubt->why));
  }
  if (const auto why = why_not_ours(above, *directory, *archive))
    return fail(ErrorCode::System, EACCES, *why);
  return directory;
}

std::optional<std::string> ScratchDirectory::why_not_ours(const OpenDirectory& above,
                                                          const OpenDirectory& directory,
                                                          const FileStatus& archive) const {
  const std::uint32_t due = directory_access_of_others(archive, directory.status.gid);
  if (!directory.fd || (directory.status.mode & due) == due) return std::nullopt;
  const auto has_mark = [&] {
    return made_mark_of(directory.fd.get(), above.fd.get(), path_.filename()) == MadeMark::Valid;
  };
  // The maker of an empty directory may be about to set its mark and its mode, and it shows no files.
  if (has_mark() || is_newly_made(directory.fd.get()) || has_mark()) return std::nullopt;
  return fmt::format(
      "{}: is ignored: its mode {:04o} allows less than the archive's mode {:04o}, so another user may have "
      "moved a private directory there: move it away, or set its mode to 0{:o} if it has files of this model",
      path_.string(), directory.status.mode & 07777U, archive.mode & 07777U, 0700U | due);
}

Result<OpenDirectory> ScratchDirectory::opened_or_made() {
  const auto above = opened_above();
  RETURN_IF_ERROR(above);
  auto directory = opened_in(*above);
  if (directory || directory.error().errno_value != ENOENT) return directory;
  const auto archive = strict_status_of(*archive_);
  RETURN_IF_ERROR(archive);
  const auto is_new = storage_.make_directory(above->file(path_.filename()));
  if (!is_new) return tl::unexpected(above->with_shown_paths(is_new.error(), path_.parent_path()));
  if (!*is_new) return opened_in(*above);
  // The umask, or a default list of the directory above, may have let others write the new directory until
  // now.
  directory = open_directory(storage_, above->file(path_.filename()));
  RETURN_IF_ERROR(directory);
  if (directory->fd && !is_newly_made(directory->fd.get())) {
    return fail(ErrorCode::ArchiveChanged, ESTALE, path_.string() + ": was exchanged while it was made");
  }
  if (directory->fd) mark_made_directory(directory->fd.get(), above->fd.get(), path_.filename());
  give_directory_access(storage_, *directory, *archive);
  return opened_in(*above);
}

Result<std::vector<std::string>> ScratchDirectory::list() const {
  auto fd = opened();
  if (!fd && fd.error().errno_value == ENOENT) return std::vector<std::string>();
  RETURN_IF_ERROR(fd);
  auto names = storage_.list(in(*fd, "."), "");
  RETURN_IF_ERROR(names);
  std::erase_if(*names, [](const std::string& name) { return name == "." || name == ".."; });
  std::ranges::sort(*names);
  return names;
}

std::optional<ScratchDirectory::Status> ScratchDirectory::status(const std::string& name) const {
  const auto fd = opened();
  if (!fd) return std::nullopt;
  struct stat st {};
  const auto named = open_entry(fd->fd.get(), name, O_PATH, name);
  if (!named || ::fstat(named->get(), &st) != 0 || !S_ISREG(st.st_mode)) return std::nullopt;
  return status_in(st, -1);
}

std::optional<ScratchDirectory::Status> ScratchDirectory::status_of(int descriptor) {
  struct stat st {};
  return ::fstat(descriptor, &st) == 0 ? std::optional(status_in(st, descriptor)) : std::nullopt;
}

Result<std::unique_ptr<File>> ScratchDirectory::create(const std::string& name, std::uint32_t mode) {
  // Another mount may remove its last file, and with it the directory, between the two steps.
  constexpr int kAttempts = 8;
  for (int attempt = 1;; ++attempt) {
    const auto fd = opened_or_made();
    RETURN_IF_ERROR(fd);
    auto file = storage_.create(in(*fd, name), 0600);
    if (!file && file.error().errno_value == ENOENT && attempt < kAttempts) continue;
    if (!file) return failed(file.error().errno_value, name, "create");
    auto archive = strict_status_of(*archive_);
    if (archive) archive->mode = narrowed(archive->mode, mode);
    auto given = archive ? give_access(storage_, **file, *archive) : tl::unexpected(archive.error());
    if (given) return file;
    static_cast<void>(storage_.remove(in(*fd, name)));
    return pass_on(std::move(given));
  }
}

Result<std::unique_ptr<File>> ScratchDirectory::open(const std::string& name) const {
  const auto fd = opened();
  RETURN_IF_ERROR(fd);
  auto file = storage_.open_no_link(in(*fd, name), Access::ReadWrite);
  if (!file) return failed(file.error().errno_value, name, "open");
  const auto status = (*file)->status();
  RETURN_IF_ERROR(status);
  if (status->links <= 1) return file;
  return fail(ErrorCode::System, EPERM, (path_ / name).string() + ": has another name elsewhere");
}

Result<void> ScratchDirectory::rename(const std::string& name, const std::string& new_name, bool replaces) {
  const auto fd = opened();
  RETURN_IF_ERROR(fd);
  const auto renamed = storage_.rename(in(*fd, name), in(*fd, new_name), replaces);
  return renamed ? Result<void>() : failed(renamed.error().errno_value, new_name, "rename");
}

Result<void> ScratchDirectory::remove(const std::string& name) {
  const auto fd = opened();
  RETURN_IF_ERROR(fd);
  if (const auto removed = storage_.remove(in(*fd, name)); !removed)
    return failed(removed.error().errno_value, name, "remove");
  tidy();
  return {};
}

void ScratchDirectory::tidy() {
  const auto above = opened_above();
  if (!above) return;
  static_cast<void>(
      storage_.remove_directory(above->file(path_.filename())));  // ENOTEMPTY: other files are left
}

Result<void> ScratchDirectory::sync() const {
  const auto above = opened_above();
  RETURN_IF_ERROR(above);
  const auto fd = opened_in(*above);
  RETURN_IF_ERROR(fd);
  RETURN_IF_ERROR(storage_.sync_directory(in(*fd, ".")));
  return storage_.sync_directory(above->path);
}

ScratchDirectory scratch_directory_of(const Model& model) {
  // New tensors go to the last shard. If that shard could not be opened, no tensors are made, and any shard
  // will do.
  std::shared_ptr<Archive> last;
  for (const Shard& shard : model.shards()) {
    if (shard.archive) last = shard.archive;
  }
  const bool is_sharded = model.is_sharded() && !model.delta();
  const std::filesystem::path at = last->real_path();
  std::shared_ptr<const File> file(last, &last->file());
  return {is_sharded ? model.path() : at, std::move(file), at, last->storage()};
}

std::vector<std::string> scratch_files_of(const Model& model) {
  return scratch_directory_of(model).list().value_or(std::vector<std::string>());
}

}  // namespace stfs
