// Who may read and settle a journal, and whose journals are believed.
//
// The promise: whoever may write an archive can see, finish and remove each of its journals, whoever made it.
// So a new journal gets the archive's mode and group, and its owner where this process is root. The umask
// does not count.
//
//   the maker                              owner            group            mode
//   root                                   the archive's    the archive's    the archive's, rw for the owner
//   another user, of the archive's group   this user        the archive's    the archive's, rw for the owner
//   another user, not of that group        this user        as created       the same, but the group's bits
//                                                                            are those of others
//
// In the last line the archive's group may lose access that it has to the archive, and in each line an access
// control list is not copied: who can't read the journal is refused a commit, and told whom to ask.
//
// A journal says what to write into the archive, so a journal of somebody who may not write the archive is
// never applied. Believed are:
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
// Every other journal blocks commits (journal_scan.h): its owner may still have a right to the archive that
// does not show here.
#pragma once

#include <string>

#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

/// Gives a new journal what the table says. Call it before the journal has its name and its bytes: the sync
/// of the bytes then covers it. A group that may not be given is no failure.
Result<void> give_access(Storage& storage, File& journal, const FileStatus& archive);

/// What the second table says.
/// @param directory  where both lie.
bool is_believed(const FileStatus& journal, const FileStatus& archive, const FileStatus& directory,
                 std::uint32_t user);

/// For messages: "user 1000 or root".
std::string settlers_of(const FileStatus& journal);

}  // namespace stfs
