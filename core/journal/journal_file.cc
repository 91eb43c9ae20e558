// Creates and locks a journal's file, looks it up by name, and makes it void.
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
  // Nothing will be committed to an archive that is gone, so a journal of it needs no special access.
  if (!access && !says_gone(access.error())) return tl::unexpected(access.error());
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    JournalFile made;
    made.id = JournalId::random();
    const std::string name = journal_prefix(archive_path.filename().string()) + made.id.text();
    made.path = archive_path.parent_path() / (name + std::string(suffix));
    const std::filesystem::path staged_path =
        archive_path.parent_path() / (name + std::string(kStagedSuffix));
    auto file = storage.create_unnamed(staged_path);
    if (!file) return pass_on(std::move(file));
    made.file = std::move(*file);
    auto conflict = made.file->try_lock(kOwnerByte, LockKind::Exclusive);
    // GlusterFS says so of an open file whose name another host has removed.
    if (!conflict && says_gone(conflict.error())) continue;
    if (!conflict && !lacks_locks(conflict.error())) return pass_on(std::move(conflict));
    if (conflict && *conflict) continue;
    // Set the access before the file has a name or bytes: their sync then covers it.
    const auto own = access ? give_access(storage, *made.file, *access) : made.file->status();
    if (!own && says_gone(own.error())) continue;
    if (!own) return tl::unexpected(own.error());
    made.own = FileNumbers::of(*own);
    made.is_locked = conflict.has_value();
    if (!made.file->has_staged_name() || storage.status(staged_path)) return made;
  }
  return fail(ErrorCode::Busy, EBUSY, archive_path.string() + ": another program removes each new journal");
}

Result<bool> is_listed(Storage& storage, const std::filesystem::path& journal) {
  const std::string name = journal.filename().string();
  auto names = storage.list(journal.parent_path(), name);
  if (!names) return pass_on(std::move(names));
  return std::ranges::find(*names, name) != names->end();
}

Result<std::filesystem::path> find_archive(Storage& storage, const std::filesystem::path& journal) {
  const std::string name = journal.filename().string();
  const std::string prefix = name.substr(0, name.rfind(kJournalMark) + kJournalMark.size());
  const auto has_prefix = [&](const std::string& archive) { return journal_prefix(archive) == prefix; };
  const std::string uncut = prefix.substr(1, prefix.size() - 1 - kJournalMark.size());
  if (has_prefix(uncut)) {
    const std::filesystem::path path = journal.parent_path() / uncut;
    auto there = storage.status(path);
    if (there) return path;
    if (there.error().errno_value != ENOENT) return pass_on(std::move(there));
  }
  // The journals of an archive with a long name have a part of it, and a hash.
  constexpr std::size_t kHashBytes = 17;
  if (uncut.size() <= kHashBytes || uncut[uncut.size() - kHashBytes] != '~') return std::filesystem::path();
  auto names = storage.list(journal.parent_path(), uncut.substr(0, uncut.size() - kHashBytes));
  if (!names) return pass_on(std::move(names));
  const auto found = std::ranges::find_if(*names, has_prefix);
  return found == names->end() ? std::filesystem::path() : journal.parent_path() / *found;
}

Result<void> make_void(File& journal, ByteRange heads, Durability durability) {
  const std::string zeros(heads.size_bytes, '\0');
  auto done = journal.write(std::as_bytes(std::span(zeros)), heads.offset);
  return done && durability == Durability::Power ? journal.sync() : done;
}

}  // namespace stfs
