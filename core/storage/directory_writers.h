// Finds a file that a user may have moved into a directory without the right to read it.
//
// A user who may write two directories may move any file from one to the other, for example a private file of
// root into a published version. A program that then copies the file with root's rights would show its bytes.
// A user who may read the file could have copied it, so the place of such a file gives nothing away.
#pragma once

#include <optional>
#include <string>

#include "core/base/error.h"

namespace stfs {

/// Finds who may write the directory, and may not read the file:
/// - the directory's owner, unless this is root or this process's user
/// - everybody, if the mode lets everybody write
/// - the directory's group, if it may write and the file's owner does not own the directory: libraries make
///   files of mode 0600 in directories that a group shares
/// The owner of the file may always read it. permissions_of() applies the file's access control list. Users
/// and groups who may write the directory only by its access control list are trusted.
/// @param directory, file  open; O_PATH is enough.
/// @return words for a message: "user 1000", "group 100" or "every user". Nothing: all of them may read it.
Result<std::optional<std::string>> find_writer_who_may_not_read(int directory, int file);

}  // namespace stfs
