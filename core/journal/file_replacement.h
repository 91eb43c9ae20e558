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

/// Whether the journal holds the new index that its record names, whole.
Result<bool> has_new_index(const File& journal, const FileReplacement& index);
/// The hash of the file at this path; 0 if there is none. EFBIG: it is longer than kMaxIndexBytes.
Result<std::uint64_t> hash_of_index(Storage& storage, const std::filesystem::path& path);

/// Checks that the index is the old one. Makes a file without a name that has the bytes of the new one: then
/// replace_index() needs no disk space. On a file system without unnamed files it has the name of a journal
/// that is being staged: a recovery removes it after this process has died.
/// @param archive_path  The journal lies beside this archive.
/// @param archive  that archive, open.
/// @return ArchiveChanged (ESTALE): it is another one. ENOSPC, EDQUOT: there is no room. EPERM: a recovery
///         would not believe that the journal's maker may replace the index.
Result<std::unique_ptr<File>> prepare_index(Storage& storage, const std::filesystem::path& archive_path,
                                            const File& archive, const File& journal,
                                            const FileReplacement& index);

/// Whose right to replace an index counts.
enum class RightOf : std::uint8_t {
  Process,       // this process made the journal: the kernel decides
  JournalMaker,  // the journal was found
};

/// Replaces the index. May be repeated. An index that is neither the old one nor the new one is
/// somebody else's, and stays.
/// An index that the journal's maker may not write (journal_access.h) stays, and one behind a link stays. For
/// a sync state the right to write its directory counts.
/// @param journal_path  the journal's name, in the directory of the archive. A process that is killed in this
///                      call leaves a file named after it beside the index, which the next call removes.
/// @param prepared  of prepare_index(), or null.
Result<void> replace_index(Storage& storage, const std::filesystem::path& journal_path, const File& journal,
                           const FileReplacement& index, RightOf right, Durability durability,
                           std::unique_ptr<File> prepared = nullptr);

}  // namespace stfs
