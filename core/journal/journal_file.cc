#include "core/journal/journal_file.h"

#include <algorithm>
#include <span>
#include <string>

#include "core/journal/journal_access.h"
#include "core/storage/permissions.h"

namespace stfs {

Result<JournalFile> create_journal_file(Storage& storage, const std::filesystem::path& archive_path,
                                        const File& archive, std::string_view suffix) {
  // On a file system without unnamed files, another process's recovery may find the new file before it is
  // locked, take it for a dead owner's leftover and remove it. Then another file is made.
  constexpr int kAttempts = 8;
  const auto access = strict_status_of(archive);
  // If the archive was removed, nothing will be committed to it, and its journal needs no special access.
  if (!access && !says_gone(access.error())) return tl::unexpected(access.error());
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    JournalFile made;
    made.id = JournalId::random();
    const std::string name = journal_prefix(archive_path.filename().string()) + made.id.text();
    made.path = archive_path.parent_path() / (name + std::string(suffix));
    const std::filesystem::path staged_path =
        archive_path.parent_path() / (name + std::string(kStagedSuffix));
    auto file = storage.create_unnamed(staged_path);
    RETURN_IF_ERROR(file);
    made.file = std::move(*file);
    auto conflict = made.file->try_lock(kOwnerByte, LockKind::Exclusive);
    // GlusterFS returns this error for an open file whose name another host has removed.
    if (!conflict && says_gone(conflict.error())) continue;
    if (!conflict && !lacks_locks(conflict.error())) return pass_on(std::move(conflict));
    if (conflict && *conflict) continue;
    // Set the access before the file has a name or bytes: their sync then covers it.
    const auto own = access ? give_access(storage, *made.file, *access) : made.file->status();
    if (!own && says_gone(own.error())) continue;
    RETURN_IF_ERROR(own);
    made.own = FileNumbers::of(*own);
    made.is_locked = conflict.has_value();
    if (!made.file->has_staged_name() || storage.status(staged_path)) return made;
  }
  return fail(ErrorCode::Busy, EBUSY, archive_path.string() + ": another program removes each new journal");
}

Result<bool> is_listed(Storage& storage, const std::filesystem::path& journal) {
  const std::string name = journal.filename().string();
  auto names = storage.list(journal.parent_path(), name);
  RETURN_IF_ERROR(names);
  return std::ranges::find(*names, name) != names->end();
}

Result<bool> has_journal_beside(Storage& storage, const std::filesystem::path& archive_path) {
  auto names = storage.list(archive_path.parent_path(), journal_prefix(archive_path.filename().string()));
  RETURN_IF_ERROR(names);
  return !names->empty();
}

Result<DirectoryNames> DirectoryNames::list(Storage& storage, const std::filesystem::path& directory) {
  auto listed = storage.list(directory, "");
  RETURN_IF_ERROR(listed);
  DirectoryNames names(storage, directory);
  for (std::string& name : *listed) {
    std::string prefix = journal_prefix(name);
    const bool is_cut = prefix.size() != 1 + name.size() + kJournalMark.size();
    if (is_cut) names.archives_.emplace(std::move(prefix), name);
    names.all_.insert(std::move(name));
  }
  return names;
}

Result<std::filesystem::path> DirectoryNames::archive_of(const std::string& journal) const {
  const std::string prefix = journal.substr(0, journal.rfind(kJournalMark) + kJournalMark.size());
  const std::string uncut = prefix.substr(1, prefix.size() - 1 - kJournalMark.size());
  if (journal_prefix(uncut) == prefix) {
    const std::filesystem::path path = directory_ / uncut;
    auto there = storage_->status(path);
    if (there) return path;
    if (there.error().errno_value != ENOENT) return pass_on(std::move(there));
  }
  // If the archive's name is long, its journals' names have a part of it, and a hash.
  const auto found = archives_.find(prefix);
  return found == archives_.end() ? std::filesystem::path() : directory_ / found->second;
}

Result<void> make_void(File& journal, ByteRange heads, Durability durability) {
  const std::string zeros(heads.size_bytes, '\0');
  auto done = journal.write(std::as_bytes(std::span(zeros)), heads.offset);
  return done && durability == Durability::Power ? journal.sync() : done;
}

}  // namespace stfs
