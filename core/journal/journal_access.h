// Decides who may read and settle a journal, and whose journals are believed.
//
// The promise: whoever may write an archive can see, finish and remove each of its journals, whoever made it.
// So a new journal gets the archive's mode and group, and also its owner if this process is root. The umask
// does not count.
//
//   the maker                              owner            group            mode
//   root                                   the archive's    the archive's    the archive's, rw for the owner
//   another user, of the archive's group   this user        the archive's    the archive's, rw for the owner
//   another user, not of that group        this user        as created       the same, but the group's bits
//                                                                            are those of others
//
// In the last line, members of the archive's group may have no access to the journal although they have
// access to the archive. An access control list is never copied. A process that can't read the journal may
// not commit, and its error names the users that can settle the journal.
//
// A journal says what to write into the archive. So a journal is never applied if its owner may not write the
// archive. These journals are believed:
//
//   a journal of               when
//   root                       always
//   the archive's owner        always
//   this process's user        always
//   anybody                    others may write the archive
//   a member of its group      the group may write the archive, and the journal has the archive's group
//
// Only a member can give a file that group. A directory that gives its own group to new files proves nothing
// where others may write to the directory.
//
// Every other journal blocks commits (journal_scan.h): its owner may have a right to the archive that this
// process can't see.
#pragma once

#include <string>

#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

/// Sets owner, group and mode of a new journal as the first table says. Call it before the journal has its
/// name and its bytes: the sync of the bytes then covers it. A group that may not be given is no failure.
Result<void> give_access(Storage& storage, File& journal, const FileStatus& archive);

/// Whether the second table lets this user believe the journal.
/// @param directory  holds both files.
bool is_believed(const FileStatus& journal, const FileStatus& archive, const FileStatus& directory,
                 std::uint32_t user);

/// Names the users that can settle the journal, for messages: "user 1000 or root".
std::string settlers_of(const FileStatus& journal);

/// What a user can do about a journal, or a group record, that this process may not read or write. Root is
/// not told to become root, nor its owner to ask the owner.
/// @param user  the user of this process.
std::string settling_advice(const FileStatus& journal, std::uint32_t user);
/// The same about a journal that is not believed, for any user.
std::string disbelief_advice(const FileStatus& journal);

}  // namespace stfs
