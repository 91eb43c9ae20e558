// Gives the index of a sharded model, or the state of its weight sync, new bytes after a change of its
// shards.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

/// Returns true if the journal holds all of the new index that its record names.
Result<bool> has_new_index(const File& journal, const FileReplacement& index);
/// The hash of the file at this path; 0 if there is none. EFBIG: it is longer than kMaxIndexBytes.
Result<std::uint64_t> hash_of_index(Storage& storage, const std::filesystem::path& path);

/// Checks that the index is the old one. Makes a file without a name that has the bytes of the new index, so
/// that replace_index() needs no disk space. On a file system without unnamed files it has the name of a
/// journal that is being staged: a recovery removes it after this process has died.
/// @param archive_path  the archive beside the journal.
/// @param archive  that archive, open.
/// @return ArchiveChanged (ESTALE): the index is not the old one. ENOSPC, EDQUOT: the disk or the quota is
/// full. EPERM: a recovery would not believe that the journal's maker may replace the index.
Result<std::unique_ptr<File>> prepare_index(Storage& storage, const std::filesystem::path& archive_path,
                                            const File& archive, const File& journal,
                                            const FileReplacement& index);

/// The right that allows the replacement of an index.
enum class RightOf : std::uint8_t {
  Process,       // this process made the journal: the kernel decides
  JournalMaker,  // the journal was found
};

/// Replaces the index. May be repeated. Does nothing if the index is neither the old one nor the new one:
/// another program has changed it. Does nothing if the journal's maker may not write the index
/// (journal_access.h), or if the directory of a sync state is a link. For a sync state, the right to write
/// its directory decides.
/// @param journal_path  the journal's name, in the directory of the archive. A process that is killed in this
///                      call leaves a file named after the journal beside the index. The next call removes
///                      that file.
/// @param prepared  the result of prepare_index(), or null.
Result<void> replace_index(Storage& storage, const std::filesystem::path& journal_path, const File& journal,
                           const FileReplacement& index, RightOf right, Durability durability,
                           std::unique_ptr<File> prepared = nullptr);

}  // namespace stfs
