// The record that makes the journals of several archives one commit.
//
// A transaction over the shards of a model writes one journal per shard. Each journal names the group record.
// The group record, `.NAME.stj.ID.group`, gets its name last, beside the archive whose journal replaces the
// index. If no journal does, it is beside the first archive. All of its journals are committed as soon as its
// name is on stable storage, and none before that. The group record is removed after the last of its
// journals. The journals tell the name before the record has it, and another user could take it then:
// therefore an empty file has the name first, and the record takes the place of this file.
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
/// More journals than any model has shards.
inline constexpr std::uint32_t kMaxGroupJournals = 1 << 16;

struct GroupContent {
  std::vector<std::string> journals;  // file names in one directory
  FileNumbers own{};                  // the numbers of the record's file
};
/// Encodes the content, and a hash over it.
std::string encode_group_record(const GroupContent& content);
/// Any bytes are safe input. InvalidArgument: damaged. With errno EPROTONOSUPPORT: another version wrote
/// them.
Result<GroupContent> decode_group_record(std::string_view bytes);

/// Returns true if a file of this name, in the directory of its journals, can be a group record.
bool is_group_record_name(std::string_view name);

enum class GroupState : std::uint8_t {
  Absent,     // never committed, or already finished and removed
  Committed,  // the group record names the journal
};
struct GroupVerdict {
  GroupState state = GroupState::Absent;
  std::string
      ignored{};  // names a file at the path that is not believed, with the reason; empty if there is none
};
/// Reads whether the group record at `path` names a journal. Absent if there is no file, if the file is void,
/// and if its owner may not write the archive: that file is ignored. InvalidArgument: the record is damaged,
/// or does not name the journal, or users who may not write the archive may have written or linked it, or the
/// file was not made as a group record.
/// @param archive  strict_status_of() of the journal's archive (core/storage/permissions.h).
Result<GroupVerdict> look_at_group_record(Storage& storage, const std::filesystem::path& path,
                                          const std::string& journal, const FileStatus& archive);
/// Finds the group records that name journals whose own records are void. Reads each group record of the
/// directory once, if a writer of the archive may have made it.
/// @param archive  strict_status_of() of the journals' archive.
/// @return the file name of the group record of each journal that has one.
Result<std::map<std::string, std::string>> find_group_records(Storage& storage,
                                                              const std::filesystem::path& directory,
                                                              const std::set<std::string>& journals,
                                                              const FileStatus& archive);
/// The names of the group record's journals; none if it does not exist or is void.
Result<std::vector<std::string>> journals_of_group(Storage& storage, const std::filesystem::path& path);
/// Returns true if one of the group record's journals still has its name.
/// @param later  the names in its directory, listed after the group record was found. Its journals are older
///               than it.
Result<bool> has_journals(const File& record, const DirectoryNames& later);
/// Asks for each journal by its name, before a record is removed: on a network file system, a cached listing
/// may be older than the record.
Result<bool> has_journals(Storage& storage, const std::filesystem::path& path, const File& record);
/// Removes a group record if none of its journals has its name.
Result<void> remove_without_journals(Storage& storage, const std::filesystem::path& path,
                                     const DirectoryNames& later);

/// Writes a group record, publishes it and removes it. For one thread.
class GroupRecord {
 public:
  /// @param archive_path  the path of one of the archives.
  /// @param archive  that archive, open.
  /// @param others  the other archives, open. If users or modes differ, only the maker may write the record,
  ///                and all users may read its names: it must be believed for each of the archives.
  static Result<GroupRecord> create(Storage& storage, const std::filesystem::path& archive_path,
                                    const File& archive, std::span<const File* const> others = {});

  [[nodiscard]] std::string name() const { return made_.path.filename().string(); }
  /// Writes the names of the journals, on stable storage, and reserves the record's name.
  Result<void> seal(const std::vector<std::string>& journals, Durability durability);
  /// THE COMMIT POINT. After a failure nothing is committed. If that can't be ensured, the error's code is
  /// CommitUnknown.
  Result<void> publish(Durability durability);
  /// Removes the group record. The caller has removed all of its journals.
  Result<void> remove();
  /// Removes the reserved name of a record that was not published.
  void give_up();

 private:
  GroupRecord(Storage& storage, JournalFile made, JournalFile empty)
      : storage_(&storage), made_(std::move(made)), empty_(std::move(empty)) {}
  /// The record's name until it takes the place of the empty file. Recovery knows it as a file in staging.
  [[nodiscard]] std::filesystem::path staged_path() const;

  Storage* storage_;
  JournalFile made_;   // its path is the final name of the record
  JournalFile empty_;  // reserves this name; other processes see by its lock that the owner lives
};

}  // namespace stfs
