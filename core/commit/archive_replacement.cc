#include "core/commit/archive_replacement.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/commit/commit_locks.h"

namespace stfs {
namespace {

/// Returns ESTALE unless the archive still has its name in the directory in which it was opened, and its path
/// still leads to the archive.
Result<void> check_name(const Archive& archive) {
  for (const auto& there : {archive.storage().status(archive.real_path()), archive.status_at_path()}) {
    if (there && there->identity.same_file(archive.identity())) continue;
    if (!there && there.error().errno_value != ENOENT) return tl::unexpected(there.error());
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                archive.path().string() + ": the archive, or its directory, was exchanged for another one");
  }
  return {};
}

/// Takes step 5.
Result<void> name_over(Archive& archive, JournalFile& content, bool& is_replaced) {
  Storage& storage = archive.storage();
  const std::filesystem::path& path = archive.real_path();
  std::filesystem::path staged = content.path;
  staged += kStagedSuffix;
  RETURN_IF_ERROR(storage.publish(*content.file, staged));
  auto renamed = storage.rename(staged, path, true);
  is_replaced = renamed.has_value();
  if (renamed) return renamed;
  // The reply of a storage may be lost after the storage has renamed the file.
  const auto there = storage.status(path);
  const auto own = content.file->status();
  is_replaced = there && own && there->identity.same_file(own->identity);
  static_cast<void>(storage.remove(staged));
  return renamed;
}

Result<JournalFile> begin_unguarded(const Archive& archive, std::uint64_t size_bytes) {
  Storage& storage = archive.storage();
  const auto present = archive.file().status();
  RETURN_IF_ERROR(present);
  const std::string path = archive.path().string();
  if (present->links > 1)
    return fail(ErrorCode::InvalidArgument, EMLINK,
                fmt::format("{}: the archive has {} hard links", path, present->links));
  RETURN_IF_ERROR(storage.check_replaceable(archive.real_path()));
  auto made = create_journal_file(storage, archive.real_path(), archive.file());
  RETURN_IF_ERROR(made);
  if (made->file->has_staged_name())
    return fail(ErrorCode::System, EOPNOTSUPP, path + ": its file system has no files without a name");
  const auto own = made->file->status();
  RETURN_IF_ERROR(own);
  if (own->uid != present->uid || own->gid != present->gid)
    return fail(ErrorCode::System, EPERM, path + ": this mount may not give a new file the archive's owner");
  if (auto reserved = made->file->reserve({0, size_bytes}); !reserved) return pass_on(std::move(reserved));
  return made;
}

Result<void> replace_unguarded(Archive& archive, JournalFile& content, const CommitOptions& options,
                               const std::function<Result<void>()>& check, bool& is_replaced) {
  Storage& storage = archive.storage();
  const bool syncs = archive.durability(options.durability) == Durability::Power;
  RETURN_IF_ERROR(archive.open_for_writing());
  RETURN_IF_ERROR(archive.resume_writing());
  RETURN_IF_ERROR(archive.check_writable());
  RETURN_IF_ERROR(lock_for_edit(archive, options));
  RETURN_IF_ERROR(check_archive(archive, options));
  RETURN_IF_ERROR(check());
  RETURN_IF_ERROR(storage.copy_attributes(archive.file(), *content.file));
  if (syncs) {
    RETURN_IF_ERROR(content.file->sync_all());
  }
  RETURN_IF_ERROR(check_name(archive));
  auto done = name_over(archive, content, is_replaced);
  if (done && syncs) done = storage.sync_directory(archive.real_path().parent_path());
  return done;
}

}  // namespace

Result<JournalFile> begin_replacement(const Archive& archive, std::uint64_t size_bytes) {
  return guard_memory([&] { return begin_unguarded(archive, size_bytes); });
}

Result<void> replace_archive(Archive& archive, JournalFile& content, const CommitOptions& options,
                             const std::function<Result<void>()>& check, bool& is_replaced) {
  is_replaced = false;
  return guard_memory([&] { return replace_unguarded(archive, content, options, check, is_replaced); });
}

}  // namespace stfs
