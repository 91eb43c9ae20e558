#include "core/journal/file_replacement.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "core/base/shell_word.h"
#include "core/base/xxh3.h"
#include "core/journal/journal_access.h"
#include "core/journal/journal_file.h"
#include "core/storage/open_directory.h"
#include "core/storage/permissions.h"

namespace stfs {
namespace {

Result<std::string> new_index(const File& journal, const FileReplacement& index) {
  return read_text(journal, index.in_journal);
}

/// The place of an index. The directory is opened once, so the checked file and the replaced file are in the
/// same directory. A directory below the archives' directory must be no link.
struct IndexPlace {
  OpenDirectory directory;
  std::filesystem::path folder;  // the directory's path for messages
  std::filesystem::path path;    // the path of the index

  template <class T>
  [[nodiscard]] Result<T> told(Result<T> done) const {
    if (done) return done;
    return tl::unexpected(directory.with_shown_paths(std::move(done).error(), folder));
  }
};

Result<IndexPlace> place_of(Storage& storage, const std::filesystem::path& archives,
                            const std::string& name) {
  const std::filesystem::path path = archives / name;
  const bool is_below = std::filesystem::path(name).has_parent_path();
  auto opened =
      open_directory(storage, path.parent_path(), is_below ? LastLink::Refused : LastLink::Followed);
  RETURN_IF_ERROR(opened);
  IndexPlace place{.directory = std::move(*opened), .folder = path.parent_path(), .path = {}};
  place.path = place.directory.file(path.filename());
  return place;
}

/// Returns null if there is no index.
Result<std::unique_ptr<File>> open_index(Storage& storage, const std::filesystem::path& path) {
  auto file = storage.open_no_link(path, Access::ReadOnly);
  if (!file && file.error().errno_value == ENOENT) return nullptr;
  return file;
}

/// Reads and hashes the file. Returns nothing, and reads nothing, if the file is longer than any index.
/// @param index  null: there is none.
Result<std::optional<std::uint64_t>> hash_of(const File* index) {
  if (index == nullptr) return 0;
  auto size_bytes = index->size_bytes();
  RETURN_IF_ERROR(size_bytes);
  if (*size_bytes > kMaxIndexBytes) return std::nullopt;
  auto text = read_text(*index, {0, *size_bytes});
  RETURN_IF_ERROR(text);
  return XXH3_64bits(text->data(), text->size());
}

/// Returns true if the journal's maker is believed to have a right to this index, by the rule for archives.
/// @param present  the index. Null: the right to write the directory decides.
Result<bool> is_believed_for(Storage& storage, const IndexPlace& place, const File* present,
                             const File& journal) {
  auto maker = journal.status();
  RETURN_IF_ERROR(maker);
  const OpenDirectory& directory = place.directory;
  auto writers = present != nullptr ? strict_status_of(*present)
                                    : strict_status_of(directory.status, directory.fd.get());
  RETURN_IF_ERROR(writers);
  // The journal itself is believed. Its mode is the archive's, which more users may write than the
  // index.
  const auto doubt = why_not_believed(storage, *maker, journal.descriptor(), *writers);
  return !doubt || !doubt->is_of_stranger;
}

/// Fails with EPERM if no recovery would replace the index: the shards would then change without it.
Result<void> check_finishable(Storage& storage, const IndexPlace& place, const File* present,
                              const std::filesystem::path& archive_path, const File& journal,
                              const FileReplacement& index) {
  if (index.name == kSyncStateName || present == nullptr) return {};
  auto believed = is_believed_for(storage, place, present, journal);
  RETURN_IF_ERROR(believed);
  if (*believed) return {};
  const std::filesystem::path path = place.folder / index.name;
  return fail(ErrorCode::System, EPERM,
              fmt::format("{}: it has another owner than {}, who could not finish this change after a crash: "
                          "give it to that one, chown --reference={} {}",
                          path.string(), archive_path.filename().string(), shell_word(archive_path.string()),
                          shell_word(path.string())));
}

/// Returns true if the index is the old one, and this right allows the replacement.
Result<bool> is_due(Storage& storage, const IndexPlace& place, const File& journal,
                    const FileReplacement& index, RightOf right) {
  auto present = open_index(storage, place.path);
  RETURN_IF_ERROR(present);
  auto hash = hash_of(present->get());
  RETURN_IF_ERROR(hash);
  if (*hash != index.old_hash) return false;
  if (right == RightOf::Process) return true;
  // The state may have another owner than the archive, and a journal that root makes has the archive's owner.
  // All users who may write the archive may write the state's directory.
  const bool is_state = index.name == kSyncStateName;
  return is_believed_for(storage, place, is_state ? nullptr : present->get(), journal);
}

/// Removes the new indexes that dead processes have left. Another user may have taken a name like theirs,
/// which stays.
Result<void> remove_left(Storage& storage, const IndexPlace& place, const std::string& journal_name) {
  auto names = storage.list(place.directory.path, journal_name);
  RETURN_IF_ERROR(names);
  for (const std::string& name : *names) {
    if (without_secret(name, kNewIndexSuffix) == journal_name)
      static_cast<void>(storage.remove(place.directory.file(name)));
  }
  return {};
}

/// Does the steps of replace_index() in the open directory.
Result<void> replace_in(Storage& storage, const IndexPlace& place, const std::filesystem::path& journal_name,
                        const File& journal, const FileReplacement& index, RightOf right,
                        Durability durability, std::unique_ptr<File> prepared) {
  const std::filesystem::path& path = place.path;
  std::filesystem::path temporary = place.directory.file(journal_name);
  temporary += secret_name_part();
  temporary += kNewIndexSuffix;
  if (right == RightOf::JournalMaker) {
    RETURN_IF_ERROR(remove_left(storage, place, journal_name.string()));
  }
  auto due = is_due(storage, place, journal, index, right);
  RETURN_IF_ERROR(due);
  if (!*due) {
    if (durability != Durability::Power) return {};
    // The process that renamed the new file may have died before it synced the directory.
    auto synced = storage.sync_directory(place.directory.path);
    return !synced && synced.error().errno_value != ENOENT ? synced : Result<void>{};
  }
  if (prepared && storage.replace_with(*prepared, path, temporary, durability)) return {};
  prepared.reset();  // its disk space may be needed
  auto text = new_index(journal, index);
  RETURN_IF_ERROR(text);
  // The archive's owner may have written the journal.
  if (XXH3_64bits(text->data(), text->size()) != index.new_hash) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: the journal {} does not have its new content", place.folder.string(),
                            journal_name.string()));
  }
  return storage.replace(path, temporary, std::as_bytes(std::span(*text)), durability);
}

}  // namespace

Result<bool> has_new_index(const File& journal, const FileReplacement& index) {
  auto text = new_index(journal, index);
  RETURN_IF_ERROR(text);
  return XXH3_64bits(text->data(), text->size()) == index.new_hash;
}

Result<std::uint64_t> hash_of_index(Storage& storage, const std::filesystem::path& path) {
  auto file = open_index(storage, path);
  RETURN_IF_ERROR(file);
  auto hash = hash_of(file->get());
  RETURN_IF_ERROR(hash);
  if (*hash) return **hash;
  return fail(ErrorCode::InvalidArgument, EFBIG,
              fmt::format("{}: it is longer than {} bytes", path.string(), kMaxIndexBytes));
}

Result<std::unique_ptr<File>> prepare_index(Storage& storage, const std::filesystem::path& archive_path,
                                            const File& archive, const File& journal,
                                            const FileReplacement& index) {
  const auto place = place_of(storage, archive_path.parent_path(), index.name);
  RETURN_IF_ERROR(place);
  auto present = place->told(open_index(storage, place->path));
  RETURN_IF_ERROR(present);
  auto hash = hash_of(present->get());
  RETURN_IF_ERROR(hash);
  if (*hash != index.old_hash) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("{}: another program has changed it meanwhile", index.name));
  }
  RETURN_IF_ERROR(check_finishable(storage, *place, present->get(), archive_path, journal, index));
  auto text = new_index(journal, index);
  RETURN_IF_ERROR(text);
  auto made = create_journal_file(storage, archive_path, archive);
  RETURN_IF_ERROR(made);
  auto written = made->file->reserve({0, text->size()});
  if (written) written = made->file->write(std::as_bytes(std::span(*text)), 0);
  RETURN_IF_ERROR(written);
  return std::move(made->file);
}

Result<void> replace_index(Storage& storage, const std::filesystem::path& journal_path, const File& journal,
                           const FileReplacement& index, RightOf right, Durability durability,
                           std::unique_ptr<File> prepared) {
  const auto place = place_of(storage, journal_path.parent_path(), index.name);
  // The directory does not exist any more, or another user has put a link there.
  if (!place && (place.error().errno_value == ENOENT || place.error().errno_value == ENOTDIR)) return {};
  RETURN_IF_ERROR(place);
  return place->told(replace_in(storage, *place, journal_path.filename(), journal, index, right, durability,
                                std::move(prepared)));
}

}  // namespace stfs
