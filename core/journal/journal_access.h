// Decides who may read and settle a journal, and whose journals are believed.
//
// The promise: whoever may write an archive can see, finish and remove each of its journals, whoever made it.
// So a new journal gets the archive's mode and group, and also its owner if this process is root. The umask
// does not count. The archive is the open file: its name may lead to another user's file by then.
//
//   the maker                              owner            group            mode
//   root                                   the archive's    the archive's    the archive's, rw for the owner
//   another user, of the archive's group   this user        the archive's    the archive's, rw for the owner
//   another user, not of that group        this user        as created       the same, but the group's bits
//                                                                            are those of others
//
// In the last line, members of the archive's group may have no access to the journal although they have
// access to the archive. An access control list is never copied, and the list that a directory gives to new
// files is taken away. A process that can't read the journal may
// not commit, and its error names the users that can settle the journal.
//
// A journal says what to write into the archive. So a journal is never applied if its owner may not write the
// archive. The owners of these journals are believed:
//
//   a journal of               when
//   root                       always
//   the archive's owner        always
//   this process's user        always
//   anybody                    others may write the archive
//   a member of its group      the group may write the archive
//
// The user database of this host says who is a member (core/storage/group_members.h). The group of a file
// proves nothing: a directory can give its own group to the files of everybody. Nor does the number that a
// user namespace shows for all users that it does not have. An access control list of the
// archive counts for a class of users only as far as every entry allows it (core/storage/permissions.h).
//
// An owner proves nothing about the bytes of a file that somebody else may have written or named. So the
// mode of a journal must not let anybody write it who may not write the archive, and the journal must have
// one name only: a hard link makes a journal of any file.
//
// The same rule holds for everything that is found beside an archive and says what to do with it: group
// records, new indexes, the directory of scratch files, and the directory of a weight sync.
//
// Every other journal blocks commits (journal_scan.h): its owner may have a right to the archive that this
// process can't see.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"
#include "core/storage/open_directory.h"

namespace stfs {

/// Sets owner, group and mode of a new journal as the first table says. Call it before the journal has its
/// name and its bytes: the sync of the bytes then covers it. A group that may not be given is no failure.
/// @return the journal's status before the last change. Its inode number and birth time never change.
Result<FileStatus> give_access(Storage& storage, File& journal, const FileStatus& archive);

/// The same for a directory of files beside the archive: who may write the archive may make files there.
void give_directory_access(Storage& storage, const OpenDirectory& made, const FileStatus& archive);
/// The bits that group and others get in such a directory, which has got this group.
std::uint32_t directory_access_of_others(const FileStatus& archive, std::uint32_t gid);

/// Why a file or a directory is not believed.
struct Disbelief {
  std::string why;  // a predicate: "belongs to user 1000, who may not write the archive"
  /// Its owner may not write the archive. Otherwise the owner may, but not all who may write the bytes.
  bool is_of_stranger = false;
};
/// Whether the rule above lets this process believe what it has found beside an archive. Nothing: it does.
/// @param found       an open file or directory, as fstat(2) has it.
/// @param descriptor  the same; -1 in a storage without descriptors.
/// @param archive     its writers are believed: of strict_status_of() (core/storage/permissions.h).
/// @param noun        what messages call the archive.
std::optional<Disbelief> why_not_believed(const Storage& storage, const FileStatus& found, int descriptor,
                                          const FileStatus& archive, std::string_view noun = "the archive");

/// Whether a writer of the archive may have made the open file: such a user owns it, and it has one name.
/// Other users may have written to it, so this is enough only for a file that says what may be removed. Else
/// ask why_not_believed().
bool is_of_writer(const Storage& storage, const FileStatus& found, const FileStatus& archive);

/// Whether the bytes of a journal or a group record were copied into this file: the record stores an inode
/// number and a birth time, and the file has other ones. A host without birth times stores 0. A host with
/// birth times accepts that 0 only in a directory that nobody but the archive's writers may write.
/// @param told  what the record stores.
/// @param file  the status of the file at the path.
/// @param descriptor  the same; -1 in a storage without descriptors.
/// @param archive  as above.
bool is_of_other_file(Storage& storage, const FileNumbers& told, const std::filesystem::path& path,
                      const FileStatus& file, int descriptor, const FileStatus& archive);

/// Names the users that can settle the journal, for messages: "user 1000 or root".
std::string settlers_of(const FileStatus& journal);

/// What a user can do about a journal, or a group record, that this process may not read or write. Root is
/// not told to become root, nor its owner to ask the owner.
/// @param user  the user of this process.
std::string settling_advice(const FileStatus& journal, std::uint32_t user);
/// The same about a journal that is not believed, for any user.
std::string disbelief_advice(std::uint32_t owner);

}  // namespace stfs
