// Hashes, and replaces what has the old hash.
#include "core/journal/index_replacement.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/base/xxh3.h"
#include "core/journal/journal_access.h"
#include "core/journal/journal_file.h"
#include "core/storage/open_directory.h"
#include "core/storage/permissions.h"

namespace stfs {
namespace {

Result<std::string> new_index(const File& journal, const IndexReplacement& index) {
  return read_text(journal, index.in_journal);
}

/// The path of an index. One in a directory below the archives' is reached through that directory, which is
/// no link.
struct IndexPlace {
  std::optional<OpenDirectory> directory{};
  std::filesystem::path path;
};

Result<IndexPlace> place_of(Storage& storage, const std::filesystem::path& archives,
                            const std::string& name) {
  IndexPlace place{.path = archives / name};
  if (std::filesystem::path(name).parent_path().empty()) return place;
  auto opened = open_directory(storage, place.path.parent_path());
  if (!opened) return tl::unexpected(opened.error());
  place.path = opened->file(place.path.filename());
  place.directory = std::move(*opened);
  return place;
}

/// Whether the journal's maker is believed to have a right to this index, as to the archive.
Result<bool> is_believed_for(Storage& storage, const std::filesystem::path& path, const File& journal) {
  auto maker = journal.status();
  if (!maker) return pass_on(std::move(maker));
  auto there = strict_status_of(storage, path);
  // Whoever may write the directory may make a new file there.
  if (!there && there.error().errno_value == ENOENT) there = strict_status_of(storage, path.parent_path());
  if (!there) return pass_on(std::move(there));
  // The journal itself is believed. Its mode is the archive's, which more users may write than the
  // index.
  const auto doubt = why_not_believed(storage, *maker, journal.descriptor(), *there);
  return !doubt || !doubt->is_of_stranger;
}

/// Whether the index is the old one, and the journal's maker may replace it.
Result<bool> is_due(Storage& storage, const std::filesystem::path& path, const File& journal,
                    const IndexReplacement& index) {
  auto present = hash_of_index(storage, path);
  if (!present) return pass_on(std::move(present));
  if (*present != index.old_hash) return false;
  // A user who may write the archive may say which version it has.
  if (index.name == kSyncStateName) return true;
  auto believed = is_believed_for(storage, path, journal);
  // Nobody wants the file any more: its directory is gone.
  if (!believed && believed.error().errno_value == ENOENT) return false;
  return believed;
}

}  // namespace

Result<bool> has_new_index(const File& journal, const IndexReplacement& index) {
  auto text = new_index(journal, index);
  if (!text) return pass_on(std::move(text));
  return XXH3_64bits(text->data(), text->size()) == index.new_hash;
}

Result<std::uint64_t> hash_of_index(Storage& storage, const std::filesystem::path& path) {
  auto file = storage.open_no_link(path, Access::ReadOnly);
  if (!file && file.error().errno_value == ENOENT) return 0;
  if (!file) return pass_on(std::move(file));
  auto text = read_text(**file);
  if (!text) return pass_on(std::move(text));
  return XXH3_64bits(text->data(), text->size());
}

Result<std::unique_ptr<File>> prepare_index(Storage& storage, const std::filesystem::path& archive_path,
                                            const File& journal, const IndexReplacement& index) {
  const auto place = place_of(storage, archive_path.parent_path(), index.name);
  if (!place) return tl::unexpected(place.error());
  auto present = hash_of_index(storage, place->path);
  if (!present) return pass_on(std::move(present));
  if (*present != index.old_hash) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("{}: another program has changed it meanwhile", index.name));
  }
  auto text = new_index(journal, index);
  if (!text) return pass_on(std::move(text));
  auto made = create_journal_file(storage, archive_path);
  if (!made) return pass_on(std::move(made));
  auto written = made->file->reserve({0, text->size()});
  if (written) written = made->file->write(std::as_bytes(std::span(*text)), 0);
  if (!written) return pass_on(std::move(written));
  return std::move(made->file);
}

Result<void> replace_index(Storage& storage, const std::filesystem::path& journal_path, const File& journal,
                           const IndexReplacement& index, Durability durability,
                           std::unique_ptr<File> prepared) {
  const auto place = place_of(storage, journal_path.parent_path(), index.name);
  // Nobody wants the file any more, or another user has put a link there.
  if (!place && (place.error().errno_value == ENOENT || place.error().errno_value == ENOTDIR)) return {};
  if (!place) return tl::unexpected(place.error());
  const std::filesystem::path& path = place->path;
  std::filesystem::path temporary = path.parent_path() / journal_path.filename();
  temporary += kNewIndexSuffix;
  auto due = is_due(storage, path, journal, index);
  if (!due) return pass_on(std::move(due));
  if (!*due) {
    if (auto removed = remove_if_there(storage, temporary); !removed) return removed;
    if (durability != Durability::Power) return {};
    // The process that renamed the new file may have died before it synced the directory.
    auto synced = storage.sync_directory(path.parent_path());
    return !synced && synced.error().errno_value != ENOENT ? synced : Result<void>{};
  }
  if (prepared && storage.replace_with(*prepared, path, temporary, durability)) return {};
  prepared.reset();  // its disk space may be needed
  auto text = new_index(journal, index);
  if (!text) return pass_on(std::move(text));
  return storage.replace(path, temporary, std::as_bytes(std::span(*text)), durability);
}

}  // namespace stfs
