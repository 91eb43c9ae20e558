#include "core/journal/left_journals.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/journal/group_record.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_format.h"
#include "core/journal/journal_scan.h"
#include "core/journal/recovery.h"

namespace stfs {
namespace {

/// Returns true for a file that only serves journals. The file is younger than its journals, and promises
/// nothing without them.
bool is_for_journals(const std::string& name) {
  return name.ends_with(kNewIndexSuffix) || name.ends_with(kGroupSuffix);
}

/// Returns true if the file at the path, which no process uses, holds no commit.
/// @param later  listed after the file was found.
Result<bool> promises_nothing(Storage& storage, const std::filesystem::path& path, const File& file,
                              const FileStatus& opened, const DirectoryNames& later) {
  const std::string name = path.filename();
  if (name.ends_with(kStagedSuffix)) return true;
  if (name.ends_with(kNewIndexSuffix)) {
    const auto journal = without_secret(name, kNewIndexSuffix);
    return journal && !later.has(std::string(*journal));
  }
  if (name.ends_with(kGroupSuffix)) {
    // A record with several names is not read: one large file could have thousands of names. The archive is
    // gone, so every user who may make names here has the right to make a record.
    if (opened.links > 1) return false;
    auto has = has_journals(file, later);
    if (has && !*has) has = has_journals(storage, path, file);
    return has ? Result<bool>(!*has) : has;
  }
  const std::uint64_t size_bytes = opened.identity.size_bytes;
  if (!name.ends_with(kLaneJournalSuffix) || size_bytes < kLaneHeads.end()) return is_void(file, size_bytes);
  auto heads = read_text(file, kLaneHeads);
  RETURN_IF_ERROR(heads);
  return heads->find_first_not_of('\0') == std::string::npos;
}

Result<void> remove_if_left(Storage& storage, const std::filesystem::path& path,
                            const DirectoryNames& later) {
  auto file = storage.open_no_link(path, Access::ReadWrite);
  RETURN_IF_ERROR(file);
  auto conflict = (*file)->try_lock(kOwnerByte, LockKind::Exclusive);
  RETURN_IF_ERROR(conflict);
  if (*conflict) return {};
  auto opened = (*file)->status();
  RETURN_IF_ERROR(opened);
  auto is_there = is_at(storage, path, *opened);
  if (!is_there || !*is_there) return is_there ? Result<void>{} : pass_on(std::move(is_there));
  auto is_left = promises_nothing(storage, path, **file, *opened, later);
  RETURN_IF_ERROR(is_left);
  if (!*is_left) return {};
  // The zero that makes the record void may not be on the disk yet (look_at_group_record()).
  if (path.native().ends_with(kGroupSuffix)) {
    RETURN_IF_ERROR((*file)->sync());
  }
  return storage.remove(path);
}

Result<void> recover_other(Storage& storage, const std::filesystem::path& archive_path) {
  auto archive = storage.open_no_link(archive_path, Access::ReadWrite);
  RETURN_IF_ERROR(archive);
  auto found = scan_journals(storage, archive_path, **archive);
  RETURN_IF_ERROR(found);
  // Skip the archive: recover() would wait for a commit of a living owner.
  const auto is_at_work = [](const FoundJournal& one) { return one.is_in_use && !one.is_lane_journal; };
  if (std::ranges::any_of(*found, is_at_work)) return {};
  auto recovered = recover(storage, archive_path, **archive);
  return recovered ? Result<void>{} : pass_on(std::move(recovered));
}

}  // namespace

void remove_left_journals(Storage& storage, const std::filesystem::path& directory,
                          const std::set<std::string>& opened, bool recovers_others) {
  const auto names = DirectoryNames::list(storage, directory);
  if (!names) return;
  std::set<std::string> known = opened;
  std::vector<std::string> for_journals;
  for (const std::string& name : names->all()) {
    if (!is_journal_name(name)) continue;
    const auto archive = names->archive_of(name);
    if (!archive) continue;
    // Ignore a failure: the next opening of that archive reports it.
    if (!archive->empty()) {
      if (known.insert(archive->filename()).second && recovers_others)
        static_cast<void>(recover_other(storage, *archive));
    } else if (is_for_journals(name)) {
      for_journals.push_back(name);
    } else {
      static_cast<void>(remove_if_left(storage, directory / name, *names));
    }
  }
  if (for_journals.empty()) return;
  const auto later = DirectoryNames::list(storage, directory);
  if (!later) return;
  for (const std::string& name : for_journals)
    static_cast<void>(remove_if_left(storage, directory / name, *later));
}

}  // namespace stfs
