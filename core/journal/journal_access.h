// Decides which users may read and settle a journal, and which users' journals are believed.
//
// The promise: each user who may write an archive can see, finish and remove each of its journals, no matter
// which user made it. A new journal gets the archive's mode and group, and also its owner if this process is
// root. The umask has no effect. The archive is the open file: its name may lead to another user's file by
// then.
//
//   the maker                              owner            group            mode
//   root                                   the archive's    the archive's    the archive's, rw for the owner
//   another user, of the archive's group   this user        the archive's    the archive's, rw for the owner
//   another user, not of that group        this user        as created       the same, but the group has
//                                                                            the bits of others
//
// In the last line, members of the archive's group may have no access to the journal although they have
// access to the archive. An access control list is never copied. If the directory gives a list to the new
// file, the list is removed. A process that can't read the journal may not commit, and its error names the
// users that can settle the journal.
//
// A journal says what to write into the archive. If a journal's owner may not write the archive, the journal
// is never applied. The owners of these journals are believed:
//
//   a journal of               when
//   root                       always
//   the archive's owner        always
//   this process's user        always
//   anybody                    others may write the archive
//   a member of its group      the group may write the archive
//
// The user database of this host has the members of groups (core/storage/group_members.h). The group of a
// file proves nothing: a directory can give its own group to the files of all users. In a user namespace, the
// number of all users that it does not have proves nothing either. An access control list of the archive
// gives a class of users only the rights that every entry allows (core/storage/permissions.h).
//
// An owner proves nothing about the bytes of a file if another user may have written or named it. A user who
// may not write the archive must not be able to write the journal. The journal must have one name only: a
// hard link can make a journal of any file.
//
// The same rule holds for every file beside an archive that says what to do with the archive: group records,
// new indexes, the directory of scratch files, and the directory of a weight sync.
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
/// name and its bytes: the sync of the bytes then covers it. Succeeds if this process may not give the group.
/// @return the journal's status before the last change. Its inode number and birth time never change.
Result<FileStatus> give_access(Storage& storage, File& journal, const FileStatus& archive);

/// Does the same for a directory of files beside the archive: users who may write the archive may make files
/// in it.
void give_directory_access(Storage& storage, const OpenDirectory& made, const FileStatus& archive);
/// Returns the bits that group and others get in such a directory, whose group is `gid`.
std::uint32_t directory_access_of_others(const FileStatus& archive, std::uint32_t gid);

/// The reason not to believe a file or a directory.
struct Disbelief {
  std::string why;  // a predicate: "belongs to user 1000, who may not write the archive"
  /// True: its owner may not write the archive. False: users who may not write the archive may have written
  /// or linked it.
  bool is_of_stranger = false;
};
/// Decides by the rule above whether this process believes a file that it has found beside an archive.
/// Nothing: the file is believed.
/// @param found  an open file or directory, as fstat(2) has it.
/// @param descriptor  the same; -1 in a storage without descriptors.
/// @param archive  strict_status_of() of the archive (core/storage/permissions.h). Its writers are believed.
/// @param noun  the archive's name in messages.
std::optional<Disbelief> why_not_believed(const Storage& storage, const FileStatus& found, int descriptor,
                                          const FileStatus& archive, std::string_view noun = "the archive");

/// Returns true if a writer of the archive may have made the open file: such a user owns it, and it has one
/// name. Other users may have written to it. So this is enough only for a file that lists things to remove.
/// For other files call why_not_believed().
bool is_of_writer(const Storage& storage, const FileStatus& found, const FileStatus& archive);

/// Returns true if the bytes of a journal or a group record were copied into this file: the record stores an
/// inode number and a birth time, and the file has other ones. A host without birth times stores 0. A host
/// with birth times accepts that 0 only in a directory that only the archive's writers may write.
/// @param told  the numbers that the record stores.
/// @param file  the status of the file at the path.
/// @param descriptor  the same; -1 in a storage without descriptors.
/// @param archive  as above.
bool is_of_other_file(Storage& storage, const FileNumbers& told, const std::filesystem::path& path,
                      const FileStatus& file, int descriptor, const FileStatus& archive);

/// Names the users that can settle the journal, for messages: "user 1000 or root".
std::string settlers_of(const FileStatus& journal);

/// Advises a user about a journal, or a group record, that this process may not read or write. Does not tell
/// root to become root, or the owner to ask the owner.
/// @param user  the user of this process.
std::string settling_advice(const FileStatus& journal, std::uint32_t user);
/// Advises any user about a journal that is not believed.
std::string disbelief_advice(std::uint32_t owner);

}  // namespace stfs
