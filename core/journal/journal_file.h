// A new file for a journal: unnamed where the file system has such files, its owner's byte locked.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

/// Whoever may lock this byte of a journal exclusively knows that its owner is dead (journal.h, invariant 4).
inline constexpr ByteRange kOwnerByte = {0, 1};

struct JournalFile {
  std::unique_ptr<File> file;
  JournalId id;
  std::filesystem::path path;  // its name, once it is published
  bool is_locked = false;      // false where the file system has no locks
};

/// Whoever may write the archive may read and write the new file (journal_access.h).
/// @param suffix  of its name, behind the id.
Result<JournalFile> create_journal_file(Storage& storage, const std::filesystem::path& archive_path,
                                        std::string_view suffix = {});

/// A journal's name is there, by a listing of the directory. Its id is random: a file of that name is this
/// journal. A look at the path is not enough: a client of a cluster file system answers out of its cache for
/// a second after another host has removed the name.
Result<bool> is_listed(Storage& storage, const std::filesystem::path& journal);

/// Makes a journal's heads zeros, on stable storage: only then is what it has promised to the archive gone
/// for good. A name that is removed may come back after a loss of power, and with it what lies under it.
Result<void> make_void(File& journal, ByteRange heads);

}  // namespace stfs
