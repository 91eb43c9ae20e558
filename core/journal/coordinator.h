// The record that several archives' journals wait for: together they are one commit.
//
// A transaction over the shards of a model writes one journal for each, which names the coordinator, and then
// the coordinator, `.NAME.stj.ID.group`, beside the first of them. As soon as that has its name on stable
// storage, all of its journals are committed; without it none is. It goes when the last of them has gone.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/journal/journal_file.h"
#include "core/storage/file.h"

namespace stfs {

inline constexpr std::string_view kGroupSuffix = ".group";
/// More than a model has shards.
inline constexpr std::uint32_t kMaxGroupJournals = 1 << 16;

/// Of the file names of its journals, all in one directory. Hashed: any bytes are safe input.
std::string encode_coordinator(const std::vector<std::string>& journals);
/// InvalidArgument: damaged; with EPROTONOSUPPORT: of another version.
Result<std::vector<std::string>> decode_coordinator(std::string_view bytes);

/// A name that such a record can have in the directory of its journals.
bool is_coordinator_name(std::string_view name);

enum class GroupState : std::uint8_t {
  Absent,     // never committed, or over
  Committed,  // it names the journal
};
/// What the coordinator at that path says of a journal. InvalidArgument: it is damaged, or names others.
Result<GroupState> look_at_coordinator(Storage& storage, const std::filesystem::path& path,
                                       const std::string& journal);
/// The coordinator that names a journal which can't say itself any more; empty where none does.
Result<std::filesystem::path> find_coordinator(Storage& storage, const std::filesystem::path& journal);
/// One of its journals has its name still.
Result<bool> has_journals(Storage& storage, const std::filesystem::path& path);

/// Being made, then the commit point of a group, then over. Used by one thread.
class Coordinator {
 public:
  /// @param archive_path  of the first archive.
  static Result<Coordinator> create(Storage& storage, const std::filesystem::path& archive_path);

  [[nodiscard]] std::string name() const { return made_.path.filename().string(); }
  /// What it says, on stable storage.
  Result<void> seal(const std::vector<std::string>& journals, Durability durability);
  /// THE COMMIT POINT. After a failure nothing is committed; where that can't be made sure, the error's code
  /// is CommitUnknown.
  Result<void> publish(Durability durability);
  /// All of its journals have gone.
  Result<void> remove();

 private:
  Coordinator(Storage& storage, JournalFile made) : storage_(&storage), made_(std::move(made)) {}

  Storage* storage_;
  JournalFile made_;
};

}  // namespace stfs
