#include "core/commit/archive_replacement.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/commit/commit_locks.h"
#include "core/storage/open_directory.h"

namespace stfs {
namespace {

/// Opens the directory in which the archive still has its name. A user who may write a directory above may
/// have given the directory's path to another one, whose files are not ours to replace: ESTALE.
Result<OpenDirectory> open_directory_of(const Archive& archive) {
  Storage& storage = archive.storage();
  auto directory = open_directory(storage, archive.real_path().parent_path(), LastLink::Followed);
  if (!directory) return directory;
  const auto there = storage.status(directory->file(archive.real_path().filename()));
  if (there && there->identity.same_file(archive.identity())) return directory;
  if (!there && there.error().errno_value != ENOENT) return tl::unexpected(there.error());
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              archive.path().string() + ": the archive, or its directory, was exchanged for another one");
}

/// Step 5.
Result<void> name_over(Archive& archive, const OpenDirectory& directory, JournalFile& content,
                       bool& is_replaced) {
  Storage& storage = archive.storage();
  const std::filesystem::path path = directory.file(archive.real_path().filename());
  std::filesystem::path staged = directory.file(content.path.filename());
  staged += kStagedSuffix;
  if (auto named = storage.publish(*content.file, staged); !named) return named;
  auto renamed = storage.rename(staged, path, true);
  is_replaced = renamed.has_value();
  if (renamed) return renamed;
  // A reply of a store may be lost on its way, after the store has renamed the file.
  const auto there = storage.status(path);
  const auto own = content.file->status();
  is_replaced = there && own && there->identity.same_file(own->identity);
  static_cast<void>(storage.remove(staged));
  return renamed;
}

Result<JournalFile> begin_unguarded(const Archive& archive, std::uint64_t size_bytes) {
  Storage& storage = archive.storage();
  const auto present = archive.file().status();
  if (!present) return tl::unexpected(present.error());
  const std::string path = archive.path().string();
  if (present->links > 1)
    return fail(ErrorCode::InvalidArgument, EMLINK,
                fmt::format("{}: the archive has {} hard links", path, present->links));
  if (auto replaceable = storage.check_replaceable(archive.real_path()); !replaceable)
    return pass_on(std::move(replaceable));
  auto made = create_journal_file(storage, archive.real_path(), archive.file());
  if (!made) return made;
  if (made->file->has_staged_name())
    return fail(ErrorCode::System, EOPNOTSUPP, path + ": its file system has no files without a name");
  const auto own = made->file->status();
  if (!own) return tl::unexpected(own.error());
  if (own->uid != present->uid || own->gid != present->gid)
    return fail(ErrorCode::System, EPERM, path + ": this mount may not give a new file the archive's owner");
  if (auto reserved = made->file->reserve({0, size_bytes}); !reserved) return pass_on(std::move(reserved));
  return made;
}

Result<void> replace_unguarded(Archive& archive, JournalFile& content, const CommitOptions& options,
                               const std::function<Result<void>()>& check, bool& is_replaced) {
  Storage& storage = archive.storage();
  const bool syncs = archive.durability(options.durability) == Durability::Power;
  if (auto opened = archive.open_for_writing(); !opened) return opened;
  if (auto resumed = archive.resume_writing(); !resumed) return resumed;
  if (auto may_write = archive.check_writable(); !may_write) return may_write;
  auto locks = lock_for_edit(archive, options);
  if (!locks) return pass_on(std::move(locks));
  if (auto same = check_archive(archive, options); !same) return same;
  if (auto checked = check(); !checked) return checked;
  if (auto copied = storage.copy_attributes(archive.file(), *content.file); !copied) return copied;
  if (syncs) {
    if (auto synced = content.file->sync_all(); !synced) return synced;
  }
  const auto directory = open_directory_of(archive);
  if (!directory) return tl::unexpected(directory.error());
  auto done = name_over(archive, *directory, content, is_replaced);
  if (done && syncs) done = storage.sync_directory(directory->path);
  if (done) return done;
  return tl::unexpected(
      directory->with_shown_paths(std::move(done).error(), archive.real_path().parent_path()));
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
