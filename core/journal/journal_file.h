// Creates a journal's file: unnamed where the file system has unnamed files, with the owner's byte locked.
// Finds the files of journals by their names.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/byte_range.h"
#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

/// The byte that a journal's owner locks. A process that can lock it exclusively knows that the owner is dead
/// (journal.h, invariant 4).
inline constexpr ByteRange kOwnerByte = {0, 1};

struct JournalFile {
  std::unique_ptr<File> file;
  JournalId id;
  FileNumbers own;
  std::filesystem::path path;  // the name that publishing gives it
  bool is_locked = false;      // false where the file system has no locks
};

/// Creates the file. Users who may write the archive may read and write this file (journal_access.h).
/// @param archive_path  the journal gets a name beside this archive.
/// @param archive  the open archive. The file gets the mode and owner of this open file, even if its name
///                 leads elsewhere now.
/// @param suffix  ends the file's name, after the id.
Result<JournalFile> create_journal_file(Storage& storage, const std::filesystem::path& archive_path,
                                        const File& archive, std::string_view suffix = {});

/// Returns true if the directory lists the journal's name. The id is random, so a file of that name is this
/// journal. A status of the path is not enough: a client of a cluster file system answers from its cache for
/// a second after another host has removed the name.
Result<bool> is_listed(Storage& storage, const std::filesystem::path& journal);

/// Returns true if a file with the name of one of the archive's journals exists. If not, recover() has
/// nothing to do. Lists names only: opens neither the archive nor a journal.
/// @param archive_path  must have no symbolic links.
Result<bool> has_journal_beside(Storage& storage, const std::filesystem::path& archive_path);

/// The names in a directory, listed once: another user may have made thousands of journals.
class DirectoryNames {
 public:
  static Result<DirectoryNames> list(Storage& storage, const std::filesystem::path& directory);

  [[nodiscard]] const std::set<std::string>& all() const { return all_; }
  [[nodiscard]] bool has(const std::string& name) const { return all_.contains(name); }
  /// Returns the path of the archive that has this journal; empty if there is no such archive.
  /// @param journal  is_journal_file_name().
  [[nodiscard]] Result<std::filesystem::path> archive_of(const std::string& journal) const;

 private:
  DirectoryNames(Storage& storage, std::filesystem::path directory)
      : storage_(&storage), directory_(std::move(directory)) {}

  Storage* storage_;
  std::filesystem::path directory_;
  std::set<std::string> all_;
  std::map<std::string, std::string> archives_;  // with long names, by the prefix of their journals
};

/// Writes zeros over a journal's heads and syncs them. Only this ends the journal's promise: a removed name
/// may come back after a power loss, and the file's content with it. With Durability::Process nothing is
/// synced.
Result<void> make_void(File& journal, ByteRange heads, Durability durability = Durability::Power);

}  // namespace stfs
