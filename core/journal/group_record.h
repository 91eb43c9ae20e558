// The record that makes the journals of several archives one commit.
//
// A transaction over the shards of a model writes one journal per shard. Each journal names the group record.
// The group record, `.NAME.stj.ID.group`, is written last, beside the archive whose journal replaces the
// index, else beside the first one. Once its name is on stable storage, all of its journals are committed;
// before that, none is. The group record is removed when the last of its journals is gone.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/journal/journal_file.h"
#include "core/storage/file.h"

namespace stfs {

inline constexpr std::string_view kGroupSuffix = ".group";
/// More than any model has shards.
inline constexpr std::uint32_t kMaxGroupJournals = 1 << 16;

struct GroupContent {
  std::vector<std::string> journals;  // file names in one directory
  FileNumbers own{};                  // of the record's file
};
/// Encodes the content, and a hash over it.
std::string encode_group_record(const GroupContent& content);
/// Any bytes are safe input. InvalidArgument: damaged. With errno EPROTONOSUPPORT: of another version.
Result<GroupContent> decode_group_record(std::string_view bytes);

/// Whether a file in the directory of its journals can have this name and be a group record.
bool is_group_record_name(std::string_view name);

enum class GroupState : std::uint8_t {
  Absent,     // never committed, or already finished and removed
  Committed,  // the group record names the journal
};
struct GroupVerdict {
  GroupState state = GroupState::Absent;
  std::string
      ignored{};  // names a file at the path that is not believed, and says why; empty if there is none
};
/// Reads what the group record at `path` says of a journal. Absent also if the file is void, and if its owner
/// may not write the archive: that file is ignored. InvalidArgument: it is damaged, or does not name the
/// journal, or others than the writers of the archive may have written or linked it, or it was not made as a
/// group record.
/// @param archive  of the journal: strict_status_of() (core/storage/permissions.h).
Result<GroupVerdict> look_at_group_record(Storage& storage, const std::filesystem::path& path,
                                          const std::string& journal, const FileStatus& archive);
/// Finds the group records that name journals whose own records are gone. Reads each group record of the
/// directory once, if a writer of the archive may have made it.
/// @param archive  of the journals: strict_status_of().
/// @return the file name of the group record of each journal that has one.
Result<std::map<std::string, std::string>> find_group_records(Storage& storage,
                                                              const std::filesystem::path& directory,
                                                              const std::set<std::string>& journals,
                                                              const FileStatus& archive);
/// The names of the group record's journals; none if it does not exist or is void.
Result<std::vector<std::string>> journals_of_group(Storage& storage, const std::filesystem::path& path);
/// Whether one of the group record's journals still has its name.
/// @param later  of its directory, listed after the group record was found. Its journals are older than it.
Result<bool> has_journals(const File& record, const DirectoryNames& later);
/// Asks for each journal by its name, before a record is removed: where a network file system keeps a
/// listing, that one may be older than the record.
Result<bool> has_journals(Storage& storage, const std::filesystem::path& path, const File& record);
/// Removes a group record if none of its journals has its name.
Result<void> remove_without_journals(Storage& storage, const std::filesystem::path& path,
                                     const DirectoryNames& later);

/// Writes a group record, publishes it and removes it. For one thread.
class GroupRecord {
 public:
  /// @param archive_path  of one of the archives.
  /// @param archive  that archive, open.
  /// @param others  the other archives, open. If users or modes differ, only the maker may write the record,
  ///   and everybody may read its names: it must be believed for each of the archives.
  static Result<GroupRecord> create(Storage& storage, const std::filesystem::path& archive_path,
                                    const File& archive, std::span<const File* const> others = {});

  [[nodiscard]] std::string name() const { return made_.path.filename().string(); }
  /// Writes the names of the journals, on stable storage.
  Result<void> seal(const std::vector<std::string>& journals, Durability durability);
  /// THE COMMIT POINT. After a failure nothing is committed. If that can't be ensured, the error's code is
  /// CommitUnknown.
  Result<void> publish(Durability durability);
  /// Removes the group record. The caller has removed all of its journals.
  Result<void> remove();

 private:
  GroupRecord(Storage& storage, JournalFile made) : storage_(&storage), made_(std::move(made)) {}

  Storage* storage_;
  JournalFile made_;
};

}  // namespace stfs
